/* SPDX-License-Identifier: Apache-2.0
 * The sandbox process of a pod, and the smallest workload there is: waits, reaps orphans, ends at once when told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
	"syscall"
)

// limitMemory makes the collector work harder near three quarters of the limit, and lets an allocation beyond it
// fail, which ends the process: the agent then knows which request did that.
func limitMemory(bytes uint64) error {
	debug.SetMemoryLimit(int64(bytes / 4 * 3))
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: bytes, Max: bytes})
}

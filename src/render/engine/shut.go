// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
)

// maxStack bounds one request's recursion well below the memory limit; going deeper ends the process.
const maxStack = 128 << 20

// shut closes the ways by which the linked libraries could reach beyond this process.
func shut() {
	// kustomize fetches remote resources by HTTP and by running git.
	http.DefaultTransport = noNetwork{}
	_ = os.Setenv("PATH", "")
	// Helm's warnings quote values, which may be secret.
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	debug.SetMaxStack(maxStack)
}

// noNetwork refuses all requests.
type noNetwork struct{}

func (noNetwork) RoundTrip(request *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s is not in the bundle, and nothing is fetched from elsewhere", request.URL.Redacted())
}

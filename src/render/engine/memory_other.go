// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "runtime/debug"

// limitMemory is only a soft limit where the kernel does not count private memory.
func limitMemory(bytes uint64) error {
	debug.SetMemoryLimit(int64(bytes / 4 * 3))
	return nil
}

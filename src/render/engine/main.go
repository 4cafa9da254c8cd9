// SPDX-License-Identifier: Apache-2.0

// Command flotilla-engine reads manifests, renders charts and builds kustomizations with the libraries that Kubernetes,
// Helm and kustomize themselves use, so that the Rust agent sees exactly what they would see. It is a pure function behind framed JSON on stdin and stdout: no
// network, no kubeconfig, no files. It ends when its input does, so it never outlives the agent.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// protocolVersion is raised by every change that an older agent or engine would misread.
const protocolVersion = 2

// memoryVariable holds the most memory, in bytes, that this process may take; the agent sets it.
const memoryVariable = "FLOTILLA_ENGINE_MEMORY"

// collectAt lets the heap grow to four times of what lives in it before the collector runs: renders leave much garbage
// on a small heap, and collecting it at once would cost a third of their time.
const collectAt = 300

func main() {
	debug.SetGCPercent(collectAt)
	if limit, err := strconv.ParseUint(os.Getenv(memoryVariable), 10, 63); err == nil && limit > 0 {
		if err := limitMemory(limit); err != nil {
			fmt.Fprintln(os.Stderr, "cannot limit memory:", err)
			os.Exit(1)
		}
	}
	shut()
	operations := map[string]operation{
		"hello":           hello,
		"yaml":            readYAML,
		"render":          renderChart,
		"kustomize":       kustomize,
		"patch":           patchFile,
		"resolve-version": resolveVersion,
	}
	if err := serve(os.Stdin, os.Stdout, operations); err != nil {
		fmt.Fprintln(os.Stderr, "engine stopped:", err)
		os.Exit(1)
	}
}

func hello(raw json.RawMessage, _ *asker) (any, *failure) {
	var asked struct {
		Protocol int `json:"protocol"`
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	if asked.Protocol != protocolVersion {
		text := fmt.Sprintf("the agent speaks protocol %d, this engine %d", asked.Protocol, protocolVersion)
		return nil, &failure{Kind: kindProtocol, Message: text}
	}
	return map[string]int{"protocol": protocolVersion}, nil
}

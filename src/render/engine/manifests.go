// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/yaml"
)

// readManifests splits rendered templates as Helm does, which is more lenient than Kubernetes, and reads each document
// as Kubernetes does.
func (done *rendering) readManifests(files map[string]string) *failure {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if size += len(text); size > maxFrame {
			message := fmt.Sprintf("the templates write more than %d bytes", maxFrame)
			return &failure{Kind: kindLimit, Message: message}
		}
		if strings.HasPrefix(path.Base(name), "_") || strings.TrimSpace(text) == "" {
			continue
		}
		position := 0
		for _, chunk := range split(text) {
			chunk = plainStyle(chunk)
			before := len(done.Documents)
			found, failed := readFile(done.Documents, len(done.Names), name, []byte(chunk))
			if failed != nil {
				failed.Message = mergeError(name, chunk, failed)
				failed.Index += position
				return failed
			}
			done.Documents = found
			for i := before; i < len(found); i++ {
				found[i].Index += position
			}
			position++
		}
		done.Names = append(done.Names, name)
	}
	return nil
}

// plainStyle turns a document in flow style, which begins like JSON and is none, into JSON. Fleet does so for what
// templates give, not for raw manifests. What cannot be read stays, to be reported by who reads it.
func plainStyle(chunk string) string {
	if !strings.HasPrefix(strings.TrimSpace(chunk), "{") || json.Valid([]byte(chunk)) {
		return chunk
	}
	if err := checkAliases([]byte(chunk)); err != nil {
		return chunk
	}
	text, err := yaml.YAMLToJSON([]byte(chunk))
	if err != nil {
		return chunk
	}
	return string(text)
}

// split gives the documents of a file that is not empty.
func split(text string) []string {
	// A tenth of a render's time is the search for separators in files that have none.
	if !strings.Contains(text, "---") {
		return []string{text}
	}
	found := releaseutil.SplitManifests(text)
	chunks := make([]string, len(found))
	for number := range chunks {
		chunks[number] = found[fmt.Sprintf("manifest-%d", number)]
	}
	return chunks
}

// mergeError words a document's fault as Fleet's agent does. There Helm reads it first, to hand it to Fleet, with a
// reader that counts lines in another way.
func mergeError(name, chunk string, failed *failure) string {
	if failed.Kind == kindInput {
		if _, first := kio.ParseAll(chunk); first != nil {
			return fmt.Sprintf("error merging manifests: parsing %s: %s", name, first)
		}
	}
	return fmt.Sprintf("error while running post render on files: %s: %s", name, failed.Message)
}

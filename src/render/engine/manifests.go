// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/kustomize/kyaml/kio"
)

// readManifests splits rendered templates as Helm does, which is more lenient than Kubernetes, and reads each document
// as Kubernetes does.
func (done *rendering) readManifests(files map[string]string) *failure {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if strings.HasPrefix(path.Base(name), "_") || strings.TrimSpace(text) == "" {
			continue
		}
		chunks := releaseutil.SplitManifests(text)
		for index := range len(chunks) {
			chunk := chunks[fmt.Sprintf("manifest-%d", index)]
			value, err := readDocument([]byte(chunk))
			if err == nil && len(done.Documents) == maxDocuments {
				err = tooLarge(fmt.Sprintf("more than %d documents", maxDocuments))
			}
			if err != nil {
				return &failure{Kind: kindOf(err), Message: mergeError(name, chunk, err), File: name, Index: index}
			}
			if value != nil {
				done.Documents = append(done.Documents, document{File: len(done.Names), Index: index, Value: value})
			}
		}
		done.Names = append(done.Names, name)
	}
	return nil
}

// mergeError words a document's fault as Fleet's agent does. There Helm reads it first, to hand it to Fleet, with a
// reader that counts lines in another way.
func mergeError(name, chunk string, err error) string {
	if kindOf(err) == kindInput {
		if _, first := kio.ParseAll(chunk); first != nil {
			return fmt.Sprintf("error merging manifests: parsing %s: %s", name, first)
		}
	}
	return fmt.Sprintf("error while running post render on files: %s: %s", name, err)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// patchFile patches the first source with the second, as Fleet does with the patches of overlays: a list is a JSON
// patch; else the merge is strategic for kinds that Kubernetes knows, and JSON's own for others. Fleet drops all
// documents of a file but the first; here the others stay, and the patch may name which one it is for.
func patchFile(raw json.RawMessage, _ *asker) (any, *failure) {
	var asked struct {
		Sources []source `json:"sources"`
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	if len(asked.Sources) != 2 {
		return nil, &failure{Kind: kindProtocol, Message: "a patch takes two files"}
	}
	base, patch := asked.Sources[0], asked.Sources[1]
	fault := func(err error, format string, names ...any) *failure {
		return &failure{Kind: kindOf(err), Message: fmt.Sprintf(format, names...) + ": " + err.Error()}
	}
	documents, err := jsonDocuments(base)
	if err != nil {
		return nil, fault(err, "failed to convert %s to json", base.Name)
	}
	patches, err := jsonDocuments(patch)
	if err != nil {
		return nil, fault(err, "failed to convert %s to json", patch.Name)
	}
	if len(documents) == 0 {
		documents = [][]byte{[]byte("{}")}
	}
	for _, text := range patches {
		at := patchedDocument(documents, text)
		if documents[at], err = applyPatch(documents[at], text); err != nil {
			return nil, fault(err, "failed to patch %s", base.Name)
		}
	}
	return map[string]string{"text": string(bytes.Join(documents, []byte("\n---\n")))}, nil
}

// jsonDocuments reads the documents of a file, lists too, and leaves out empty ones.
func jsonDocuments(file source) ([][]byte, error) {
	var documents [][]byte
	reader := k8syaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file.data())))
	for {
		chunk, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		if err := checkAliases(chunk); err != nil {
			return nil, err
		}
		document, err := yaml.YAMLToJSON(chunk)
		if err != nil {
			return nil, err
		}
		switch {
		case bytes.Equal(document, []byte("null")):
		case document[0] == '{' || document[0] == '[':
			documents = append(documents, document)
		default:
			return nil, errors.New("neither an object nor a list")
		}
	}
}

// patchedDocument finds the document that the patch names by kind and name; the first, if it names none.
func patchedDocument(documents [][]byte, patch []byte) int {
	wanted := identify(patch)
	if wanted.GetKind() == "" || wanted.GetName() == "" {
		return 0
	}
	for at, text := range documents {
		found := identify(text)
		if found.GetKind() == wanted.GetKind() && found.GetName() == wanted.GetName() {
			return at
		}
	}
	return 0
}

func identify(text []byte) unstructured.Unstructured {
	var object unstructured.Unstructured
	if err := json.Unmarshal(text, &object.Object); err != nil {
		object.Object = nil
	}
	return object
}

func applyPatch(original, patch []byte) ([]byte, error) {
	if patch[0] == '[' {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return operations.Apply(original)
	}
	object := identify(original)
	kind := schema.FromAPIVersionAndKind(object.GetAPIVersion(), object.GetKind())
	typed, err := scheme.Scheme.New(kind)
	if runtime.IsNotRegisteredError(err) || kind.Empty() {
		return jsonpatch.MergePatch(original, patch)
	}
	if err != nil {
		return nil, err
	}
	return strategicpatch.StrategicMergePatch(original, patch, typed)
}

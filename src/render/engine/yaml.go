// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	goyaml "go.yaml.in/yaml/v2"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxExpanded bounds what one document's aliases may expand to. The reader has a limit of its own on how many nodes
// aliases add, none on how often they repeat one long string.
const maxExpanded = maxFrame

// maxDocuments bounds the documents of one request; a cluster would choke on fewer objects in one release.
const maxDocuments = 100_000

// source is one file: as text, or as bytes if it is not UTF-8.
type source struct {
	Name  string `json:"name"`
	Text  string `json:"text"`
	Bytes []byte `json:"bytes"`
}

// document is one non-empty document; File counts the sources, Index the documents of its source.
type document struct {
	File  int             `json:"file"`
	Index int             `json:"index"`
	Value json.RawMessage `json:"value"`
}

func readYAML(raw json.RawMessage, _ *asker) (any, *failure) {
	var asked struct {
		Sources []source `json:"sources"`
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	documents := []document{}
	for number, file := range asked.Sources {
		found, failed := readFile(documents, number, file.Name, file.data())
		if failed != nil {
			return nil, failed
		}
		documents = found
	}
	return map[string]any{"documents": documents}, nil
}

func (file source) data() []byte {
	if file.Bytes != nil {
		return file.Bytes
	}
	return []byte(file.Text)
}

// readFile appends a file's documents.
func readFile(documents []document, number int, name string, text []byte) ([]document, *failure) {
	reader := k8syaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for index := 0; ; index++ {
		chunk, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		var value json.RawMessage
		if err == nil {
			value, err = readDocument(chunk)
		}
		if err == nil && len(documents) == maxDocuments {
			err = tooLarge(fmt.Sprintf("more than %d documents", maxDocuments))
		}
		if err != nil {
			return nil, &failure{Kind: kindOf(err), Message: err.Error(), File: name, Index: index}
		}
		if value != nil {
			documents = append(documents, document{File: number, Index: index, Value: value})
		}
	}
}

func kindOf(err error) string {
	if errors.As(err, new(tooLarge)) {
		return kindLimit
	}
	return kindInput
}

type tooLarge string

func (text tooLarge) Error() string { return string(text) }

// readDocument gives a document's JSON object, nothing for an empty one, and Fleet's error text for any other value.
func readDocument(chunk []byte) (json.RawMessage, error) {
	var (
		text []byte
		err  error
	)
	if k8syaml.IsJSONBuffer(chunk) {
		text, err = rewriteJSON(chunk)
	} else if err = checkAliases(chunk); err == nil {
		text, err = yaml.YAMLToJSON(chunk)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.Equal(text, []byte("{}")) || bytes.Equal(text, []byte("null")):
		return nil, nil
	case text[0] == '{':
		return text, nil
	}
	var object map[string]any
	return nil, json.Unmarshal(text, &object)
}

// rewriteJSON takes a JSON document through Go's own types, as the YAML reader does: the last of two equal keys wins
// and a whole number is written as one (an API server refuses 1.0 where it wants an integer).
func rewriteJSON(chunk []byte) ([]byte, error) {
	// Only this call refuses what follows the object.
	if err := json.Unmarshal(chunk, new(map[string]any)); err != nil {
		return nil, err
	}
	var object map[string]any
	reader := json.NewDecoder(bytes.NewReader(chunk))
	reader.UseNumber()
	if err := reader.Decode(&object); err != nil {
		return nil, err
	}
	return json.Marshal(plainNumbers(object))
}

func plainNumbers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			value[key] = plainNumbers(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = plainNumbers(inner)
		}
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		var big uint64
		if json.Unmarshal([]byte(value), &big) == nil {
			return big
		}
		var number float64
		if json.Unmarshal([]byte(value), &number) == nil {
			return number
		}
	}
	return value
}

// checkAliases measures a document that may repeat itself, while equal strings still share their bytes.
func checkAliases(chunk []byte) error {
	if bytes.IndexByte(chunk, '&') < 0 || bytes.IndexByte(chunk, '*') < 0 {
		return nil
	}
	var value any
	if err := goyaml.Unmarshal(chunk, &value); err != nil {
		return err
	}
	if size := expanded(value, 0); size > maxExpanded {
		return tooLarge(fmt.Sprintf("the document's aliases expand to more than %d bytes", maxExpanded))
	}
	return nil
}

// expanded counts bytes of text and stops counting beyond the limit.
func expanded(value any, size int) int {
	if size > maxExpanded {
		return size
	}
	switch value := value.(type) {
	case map[any]any:
		for key, inner := range value {
			size = expanded(inner, expanded(key, size))
		}
	case []any:
		for _, inner := range value {
			size = expanded(inner, size)
		}
	case string:
		size += len(value)
	}
	return size + 1
}

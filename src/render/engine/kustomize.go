// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	kustomizationName = "kustomization.yaml"
	// manifestsName is the file in which Fleet shows a kustomization the objects that are there without it.
	manifestsName = "fleet-manifests.yaml"
)

// kustomize builds a kustomization from files in memory, without plugins and without leaving its root.
func kustomize(raw json.RawMessage, _ *asker) (any, *failure) {
	var asked struct {
		Sources   []source          `json:"sources"`
		Directory string            `json:"directory"`
		First     []json.RawMessage `json:"first"`
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	directory := path.Clean(asked.Directory)
	documents, err := build(filesys.MakeFsInMemory(), asked.Sources, path.Join("/", directory), asked.First)
	if err != nil {
		// Fleet's file system has no root directory. There a kustomization at the top cannot use files of
		// subdirectories, but the texts name files as the bundle does.
		_, again := build(filesys.MakeEmptyDirInMemory(), asked.Sources, directory, asked.First)
		if again != nil && !strings.Contains(again.Error(), "is not in or below ''") {
			err = again
		}
		file := path.Join(directory, kustomizationName)
		return nil, &failure{Kind: kindOf(err), Message: err.Error(), File: file}
	}
	return map[string]any{"documents": documents}, nil
}

func build(files filesys.FileSystem, sources []source, directory string, first []json.RawMessage) ([]document, error) {
	for _, file := range sources {
		if file.Name == "" {
			continue
		}
		if err := files.WriteFile(file.Name, file.data()); err != nil {
			return nil, err
		}
	}
	var manifests []byte
	for _, object := range first {
		manifests = append(append(manifests, "---\n"...), yamlOf(object)...)
	}
	// Also there when empty: a kustomization may name it itself.
	if err := files.WriteFile(path.Join(directory, manifestsName), manifests); err != nil {
		return nil, err
	}
	if len(first) > 0 {
		if err := putFirst(files, path.Join(directory, kustomizationName)); err != nil {
			return nil, err
		}
	}
	options := krusty.Options{
		LoadRestrictions: types.LoadRestrictionsRootOnly,
		PluginConfig:     types.DisabledPluginConfig(),
	}
	built, err := krusty.MakeKustomizer(&options).Run(files, directory)
	if err != nil {
		if strings.Contains(err.Error(), noGit) {
			return nil, fmt.Errorf("remote resources are not fetched, put them into the bundle: %w", err)
		}
		return nil, err
	}
	documents := make([]document, 0, built.Size())
	for index, resource := range built.Resources() {
		object, err := resource.Map()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		if index == maxDocuments {
			return nil, tooLarge(fmt.Sprintf("more than %d documents", maxDocuments))
		}
		documents = append(documents, document{Index: index, Value: text})
	}
	return documents, nil
}

// noGit is in kustomize's error where it would fetch a repository.
const noGit = "no 'git' program on path"

// yamlOf makes JSON YAML too: there some characters must be escaped, and others would be taken for line breaks.
func yamlOf(object json.RawMessage) []byte {
	text := make([]byte, 0, len(object)+1)
	for _, char := range string(object) {
		switch {
		case char >= 0x7f && char <= 0x9f, char == '\u2028', char == '\u2029', char == '\ufeff', char >= 0xfffe && char <= 0xffff:
			text = fmt.Appendf(text, `\u%04x`, char)
		default:
			text = utf8.AppendRune(text, char)
		}
	}
	return append(text, '\n')
}

// putFirst lets a kustomization begin with the objects that are there without it.
func putFirst(files filesys.FileSystem, file string) error {
	text, err := files.ReadFile(file)
	if err != nil {
		return err
	}
	content := map[string]any{}
	if err := yaml.Unmarshal(text, &content); err != nil {
		return err
	}
	resources, _ := content["resources"].([]any)
	if slices.Contains(resources, any(manifestsName)) {
		return nil
	}
	content["resources"] = append([]any{manifestsName}, resources...)
	if text, err = yaml.Marshal(content); err != nil {
		return err
	}
	return files.WriteFile(file, text)
}

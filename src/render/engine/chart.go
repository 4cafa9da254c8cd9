// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// packedAt is the time of every file, as in the archives that Fleet packs, so that equal input gives equal charts.
var packedAt = time.Unix(0, 0).UTC()

// loadChart makes a chart of files as Helm makes one of an archive: with its limits, without .helmignore.
func loadChart(sources []source) (*chart.Chart, error) {
	files := make([]*archive.BufferedFile, 0, len(sources))
	room := archive.MaxDecompressedChartSize
	for _, file := range sources {
		name := path.Clean(file.Name)
		data := file.data()
		size := int64(len(data))
		switch {
		case path.IsAbs(file.Name):
			return nil, errors.New("chart illegally contains absolute paths")
		case name == "." || name == ".." || strings.HasPrefix(name, "../"):
			return nil, errors.New("chart illegally references parent directory")
		case size > archive.MaxDecompressedFileSize:
			const text = "decompressed chart file %q is larger than the maximum file size %d"
			return nil, tooLarge(fmt.Sprintf(text, file.Name, archive.MaxDecompressedFileSize))
		case size > room:
			const text = "decompressed chart is larger than the maximum size %d"
			return nil, tooLarge(fmt.Sprintf(text, archive.MaxDecompressedChartSize))
		}
		room -= size
		data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
		files = append(files, &archive.BufferedFile{Name: name, ModTime: packedAt, Data: data})
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, err
	}
	switch loaded.Metadata.Type {
	case "", "application":
	default:
		return nil, fmt.Errorf("%s charts are not installable", loaded.Metadata.Type)
	}
	sortDependencies(loaded)
	return loaded, nil
}

// sortDependencies orders what Helm's loader leaves in the random order of a map.
func sortDependencies(parent *chart.Chart) {
	children := slices.Clone(parent.Dependencies())
	slices.SortStableFunc(children, func(a, b *chart.Chart) int {
		return strings.Compare(a.Name()+"\x00"+a.Metadata.Version, b.Name()+"\x00"+b.Metadata.Version)
	})
	parent.SetDependencies(children...)
	for _, child := range children {
		sortDependencies(child)
	}
}

// processDependencies switches dependencies on and off and imports their values. One that is on but not there is an
// error, in the words of Helm's command line.
func processDependencies(root *chart.Chart, values map[string]any) error {
	present := map[string]bool{}
	for _, child := range root.Dependencies() {
		present[child.Name()] = true
	}
	// Helm renames an entry to its alias.
	original := map[*chart.Dependency]string{}
	for _, wanted := range root.Metadata.Dependencies {
		if wanted != nil {
			original[wanted] = wanted.Name
		}
	}
	if err := chartutil.ProcessDependencies(root, values); err != nil {
		return fmt.Errorf("chart dependencies processing failed: %w", err)
	}
	var missing []string
	for _, wanted := range root.Metadata.Dependencies {
		if name := original[wanted]; wanted != nil && !present[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("an error occurred while checking for chart dependencies. You may need to run "+
			"'helm dependency build' to fetch missing dependencies: found in Chart.yaml, but missing in charts/ "+
			"directory: %s", strings.Join(missing, ", "))
	}
	return nil
}

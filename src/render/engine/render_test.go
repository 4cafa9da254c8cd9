// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"testing"
)

// noQuestions is an asker for charts that ask nothing.
func noQuestions() *asker { return &asker{} }

// render renders a chart of these files.
func render(files map[string]string) (rendering, *failure) {
	sources := []source{}
	for name, text := range files {
		sources = append(sources, source{Name: name, Text: text})
	}
	args, err := json.Marshal(map[string]any{
		"sources":      sources,
		"release":      map[string]any{"name": "rel", "namespace": "space", "revision": 1},
		"capabilities": map[string]any{"kube_version": "v1.36.3"},
	})
	if err != nil {
		panic(err)
	}
	done, failed := renderChart(args, noQuestions())
	if failed != nil {
		return rendering{}, failed
	}
	return done.(rendering), nil
}

const chartFile = "{apiVersion: v2, name: shop, version: 1.0.0}"

func TestDocumentsAreCountedThroughTheirFile(t *testing.T) {
	done, failed := render(map[string]string{
		"Chart.yaml":       chartFile,
		"templates/b.yaml": "---\n# none\n---\na: 1\n---apiVersion: v1\n--- # x\nb: 2",
		"templates/a.txt":  "c: 3",
	})
	if failed != nil {
		t.Fatal(failed.Message)
	}
	got := ""
	for _, document := range done.Documents {
		got += fmt.Sprintf("%s %d %s\n", done.Names[document.File], document.Index, document.Value)
	}
	want := "shop/templates/a.txt 0 {\"c\":3}\nshop/templates/b.yaml 1 {\"a\":1}\n" +
		"shop/templates/b.yaml 2 {\"apiVersion\":\"v1\"}\nshop/templates/b.yaml 3 {\"b\":2}\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestASeparatorThatKubernetesRefusesIsRefused(t *testing.T) {
	_, failed := render(map[string]string{"Chart.yaml": chartFile, "templates/b.yaml": "a: 1\n---\n---apiVersion: v1"})
	if failed == nil || failed.Kind != kindInput {
		t.Fatalf("%+v", failed)
	}
	want := "error while running post render on files: shop/templates/b.yaml: invalid Yaml document separator: apiVersion: v1"
	if failed.Message != want || failed.File != "shop/templates/b.yaml" || failed.Index != 1 {
		t.Errorf("%+v", failed)
	}
}

func TestDependenciesComeInOneOrder(t *testing.T) {
	files := map[string]string{"Chart.yaml": chartFile}
	for _, name := range []string{"d", "b", "c", "a"} {
		files["charts/"+name+"/Chart.yaml"] = fmt.Sprintf("{apiVersion: v2, name: %s, version: 1.0.0}", name)
		files["charts/"+name+"/crds/x.yaml"] = "kind: " + name
	}
	for range 20 {
		done, failed := render(files)
		if failed != nil {
			t.Fatal(failed.Message)
		}
		got := ""
		for _, crd := range done.CRDs {
			got += string(crd.Value)
		}
		if want := `{"kind":"a"}{"kind":"b"}{"kind":"c"}{"kind":"d"}`; got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
}

func TestCRDsAreReadWithoutRendering(t *testing.T) {
	args, err := json.Marshal(map[string]any{
		"sources": []source{
			{Name: "Chart.yaml", Text: chartFile},
			{Name: "crds/x.yaml", Text: "kind: x"},
			{Name: "templates/x.yaml", Text: `{{ fail "rendered" }}`},
		},
		"crds_only": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	done, failed := renderChart(args, noQuestions())
	if failed != nil {
		t.Fatal(failed.Message)
	}
	if found := done.(rendering).CRDs; len(found) != 1 || string(found[0].Value) != `{"kind":"x"}` {
		t.Errorf("%+v", found)
	}
}

func TestAMissingDependencyCountsOnlyWhereItIsOn(t *testing.T) {
	chart := "{apiVersion: v2, name: shop, version: 1.0.0, dependencies: [{name: side, version: 1.0.0, alias: s, condition: s.enabled}]}"
	if _, failed := render(map[string]string{"Chart.yaml": chart, "values.yaml": "s: {enabled: false}"}); failed != nil {
		t.Error(failed.Message)
	}
	_, failed := render(map[string]string{"Chart.yaml": chart})
	want := "an error occurred while checking for chart dependencies. You may need to run 'helm dependency build' to " +
		"fetch missing dependencies: found in Chart.yaml, but missing in charts/ directory: side"
	if failed == nil || failed.Message != want {
		t.Errorf("%+v", failed)
	}
}

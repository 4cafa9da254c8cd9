// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"text/template"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	k8sjson "k8s.io/apimachinery/pkg/util/json"
)

// notesName ends the names of templates that are for people.
const notesName = "NOTES.txt"

// job is a chart with what it is rendered for.
type job struct {
	Sources []source       `json:"sources"`
	Values  map[string]any `json:"values"` // whole numbers are float64, as when Helm reads them
	Release struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		Revision  int    `json:"revision"`
		IsUpgrade bool   `json:"is_upgrade"`
	} `json:"release"`
	Capabilities struct {
		KubeVersion string   `json:"kube_version"`
		APIVersions []string `json:"api_versions"`
	} `json:"capabilities"`
	DNS        bool `json:"dns"`
	SkipSchema bool `json:"skip_schema"`
	CRDsOnly   bool `json:"crds_only"` // nothing is rendered
}

// rendering is what became of it. Documents count the names.
type rendering struct {
	Names     []string     `json:"names"`
	Documents []document   `json:"documents"`
	CRDs      []document   `json:"crds"`
	Notes     string       `json:"notes"`
	Chart     *chart.Chart `json:"chart"`
	Observed  bool         `json:"observed"`
}

// renderChart does what Helm's install does until it has the manifests, in the same order, so that the first of
// several faults is the one that Helm reports.
func renderChart(raw json.RawMessage, asker *asker) (any, *failure) {
	var asked job
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	root, err := prepareChart(&asked)
	if err != nil {
		return nil, &failure{Kind: kindOf(err), Message: err.Error()}
	}
	files := map[string]string{}
	if !asked.CRDsOnly {
		if files, err = executeTemplates(root, &asked, asker); err != nil {
			return nil, &failure{Kind: kindOf(err), Message: err.Error()}
		}
	}
	done := rendering{Names: []string{}, Documents: []document{}, CRDs: []document{}, Chart: root, Observed: asker.asked}
	for name, text := range files {
		if strings.HasSuffix(name, notesName) {
			if name == path.Join(root.Name(), "templates", notesName) {
				done.Notes = text
			}
			delete(files, name)
		}
	}
	if failed := done.readManifests(files); failed != nil {
		return nil, failed
	}
	for _, crd := range root.CRDObjects() {
		found, failed := readFile(done.CRDs, len(done.Names), crd.Filename, crd.File.Data)
		if failed != nil {
			failed.Message = fmt.Sprintf("failed to install CRD %s: %s", crd.Name, failed.Message)
			return nil, failed
		}
		done.CRDs = found
		done.Names = append(done.Names, crd.Filename)
	}
	return done, nil
}

func prepareChart(asked *job) (*chart.Chart, error) {
	root, err := loadChart(asked.Sources)
	if err != nil {
		return nil, err
	}
	if asked.Values == nil {
		asked.Values = map[string]any{}
	}
	return root, processDependencies(root, asked.Values)
}

func executeTemplates(root *chart.Chart, asked *job, asker *asker) (map[string]string, error) {
	capabilities, err := asked.capabilities()
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{
		Name:      asked.Release.Name,
		Namespace: asked.Release.Namespace,
		Revision:  asked.Release.Revision,
		IsInstall: !asked.Release.IsUpgrade,
		IsUpgrade: asked.Release.IsUpgrade,
	}
	values, err := util.ToRenderValuesWithSchemaValidation(root, asked.Values, release, capabilities, true)
	if err != nil {
		return nil, err
	}
	if !asked.SkipSchema {
		merged, err := values.Table("Values")
		if err != nil {
			return nil, err
		}
		if err := checkSchemas(root, merged); err != nil {
			return nil, err
		}
	}
	if wanted := root.Metadata.KubeVersion; wanted != "" {
		if !chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.String()) {
			return nil, fmt.Errorf("chart requires kubeVersion: %s which is incompatible with Kubernetes %s",
				wanted, capabilities.KubeVersion.Version)
		}
	}
	helm := engine.Engine{EnableDNS: asked.DNS, CustomTemplateFuncs: asker.functions(asked.DNS)}
	return helm.Render(root, values)
}

// capabilities are as an install finds them by discovery: the version as the server gives it, suffix included.
func (asked *job) capabilities() (*common.Capabilities, error) {
	version := asked.Capabilities.KubeVersion
	parsed, err := common.ParseKubeVersion(version)
	if err != nil {
		return nil, fmt.Errorf("the cluster's version %q is none: %w", version, err)
	}
	return &common.Capabilities{
		KubeVersion: common.KubeVersion{Version: version, Major: parsed.Major, Minor: parsed.Minor},
		APIVersions: asked.Capabilities.APIVersions,
		HelmVersion: common.DefaultCapabilities.HelmVersion,
	}, nil
}

// functions are those that look at the world outside the chart.
func (a *asker) functions(dns bool) template.FuncMap {
	functions := template.FuncMap{"lookup": a.lookup}
	if dns {
		functions["getHostByName"] = a.hostByName
	}
	return functions
}

func (a *asker) lookup(apiVersion, kind, namespace, name string) (map[string]any, error) {
	found := map[string]any{}
	what := lookup{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
	text, err := a.ask(question{Lookup: &what})
	if err != nil || string(text) == "null" {
		return found, err
	}
	// Helm's client gives whole numbers as int64.
	err = k8sjson.Unmarshal(text, &found)
	return found, err
}

func (a *asker) hostByName(name string) (string, error) {
	text, err := a.ask(question{Host: &name})
	if err != nil {
		return "", err
	}
	var address *string
	if err := json.Unmarshal(text, &address); err != nil {
		return "", err
	}
	if address == nil {
		return "", errors.New("the name " + name + " has no address")
	}
	return *address, nil
}

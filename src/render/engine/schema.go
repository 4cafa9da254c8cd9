// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

const schemaURL = "file:///values.schema.json"

// checkSchemas judges values by the schemas of a chart and its dependencies, with Helm's texts. Helm's own function
// would read files of this machine and fetch from the network what a schema refers to.
func checkSchemas(root *chart.Chart, values map[string]any) error {
	if faults := schemaFaults(root, values); faults != "" {
		return fmt.Errorf("values don't meet the specifications of the schema(s) in the following chart(s):\n%s", faults)
	}
	return nil
}

func schemaFaults(of *chart.Chart, values map[string]any) string {
	var faults strings.Builder
	if of.Schema != nil {
		if err := checkSchema(of.Schema, values); err != nil {
			fmt.Fprintf(&faults, "%s:\n%s", of.Name(), err)
		}
	}
	for _, child := range of.Dependencies() {
		switch inner := values[child.Name()].(type) {
		case nil:
		case map[string]any:
			faults.WriteString(schemaFaults(child, inner))
		default:
			const text = "%s:\ninvalid type for values: expected object (map), got %T\n"
			fmt.Fprintf(&faults, text, child.Name(), inner)
		}
	}
	return faults.String()
}

func checkSchema(text []byte, values map[string]any) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("unable to validate schema: %s", cause)
		}
	}()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{"urn": anything{}, "file": nothing{}, "http": nothing{}, "https": nothing{}})
	if err := compiler.AddResource(schemaURL, schema); err != nil {
		return err
	}
	validator, err := compiler.Compile(schemaURL)
	if err != nil {
		return err
	}
	if err := validator.Validate(values); err != nil {
		prefix := fmt.Sprintf("jsonschema validation failed with '%s#'\n", schemaURL)
		return errors.New(strings.TrimPrefix(err.Error(), prefix) + "\n")
	}
	return nil
}

// nothing loads no schema.
type nothing struct{}

func (nothing) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not in the chart, and schemas are not fetched from elsewhere", url)
}

// anything allows every value, as Helm does for a URN that it does not know.
type anything struct{}

func (anything) Load(string) (any, error) { return true, nil }

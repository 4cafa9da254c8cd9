// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/message"
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
		if invalid := new(jsonschema.ValidationError); errors.As(err, &invalid) {
			hideValues(invalid)
		}
		prefix := fmt.Sprintf("jsonschema validation failed with '%s#'\n", schemaURL)
		return errors.New(strings.TrimPrefix(err.Error(), prefix) + "\n")
	}
	return nil
}

// wordless is a kind of fault whose own text would quote a value, with one that does not.
type wordless struct {
	jsonschema.ErrorKind
	text string
}

func (kind wordless) LocalizedString(*message.Printer) string { return kind.text }

// hideValues takes the values out of what a schema's faults say: any may come from a Secret, and the text goes into
// statuses, Events and logs. What the schema wants stays, and so do the names of properties.
func hideValues(fault *jsonschema.ValidationError) {
	if text, quotes := withoutValue(fault.ErrorKind); quotes {
		fault.ErrorKind = wordless{fault.ErrorKind, text}
	}
	for _, cause := range fault.Causes {
		hideValues(cause)
	}
}

// withoutValue is the text of a kind that may quote a value; one that is not known here may.
func withoutValue(fault jsonschema.ErrorKind) (string, bool) {
	number := func(limit *big.Rat) string {
		want, _ := limit.Float64()
		return fmt.Sprintf("%s: want %v", strings.Join(fault.KeywordPath(), "."), want)
	}
	switch fault := fault.(type) {
	case *kind.Pattern:
		return fmt.Sprintf("does not match pattern '%s'", fault.Want), true
	case *kind.Format:
		return "is not valid " + fault.Want, true
	case *kind.Minimum:
		return number(fault.Want), true
	case *kind.Maximum:
		return number(fault.Want), true
	case *kind.ExclusiveMinimum:
		return number(fault.Want), true
	case *kind.ExclusiveMaximum:
		return number(fault.Want), true
	case *kind.MultipleOf:
		return number(fault.Want), true
	case *kind.InvalidJsonValue, *kind.Schema, *kind.Group, *kind.Reference, *kind.RefCycle, *kind.FalseSchema,
		*kind.Not, *kind.AllOf, *kind.AnyOf, *kind.OneOf, *kind.Type, *kind.Enum, *kind.Const,
		*kind.MinProperties, *kind.MaxProperties, *kind.Required, *kind.Dependency, *kind.DependentRequired,
		*kind.AdditionalProperties, *kind.PropertyNames, *kind.MinItems, *kind.MaxItems, *kind.AdditionalItems,
		*kind.UniqueItems, *kind.Contains, *kind.MinContains, *kind.MaxContains, *kind.MinLength, *kind.MaxLength,
		*kind.ContentSchema:
		return "", false
	}
	return fmt.Sprintf("'%s' failed", strings.Join(fault.KeywordPath(), ".")), true
}

// nothing loads no schema.
type nothing struct{}

func (nothing) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not in the chart, and schemas are not fetched from elsewhere", url)
}

// anything allows every value, as Helm does for a URN that it does not know.
type anything struct{}

func (anything) Load(string) (any, error) { return true, nil }

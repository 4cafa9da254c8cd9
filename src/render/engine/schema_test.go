// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestASchemasFaultsQuoteNoValue(t *testing.T) {
	const secret = "hunter2"
	for keyword, want := range map[string]struct {
		value any
		text  string
	}{
		`"pattern": "^[A-Z]+$"`:                         {secret, "at '/a': does not match pattern '^[A-Z]+$'"},
		`"format": "email"`:                             {secret, "at '/a': is not valid email"},
		`"format": "ipv4"`:                              {secret, "at '/a': is not valid ipv4"},
		`"format": "date"`:                              {secret, "at '/a': is not valid date"},
		`"enum": ["x", "y"]`:                            {secret, "at '/a': value must be one of 'x', 'y'"},
		`"const": "x"`:                                  {secret, "at '/a': value must be 'x'"},
		`"type": "integer"`:                             {secret, "at '/a': got string, want integer"},
		`"minLength": 12`:                               {secret, "at '/a': minLength: got 7, want 12"},
		`"minimum": 9000`:                               {4711, "at '/a': minimum: want 9000"},
		`"maximum": 9`:                                  {4711, "at '/a': maximum: want 9"},
		`"exclusiveMinimum": 9000`:                      {4711, "at '/a': exclusiveMinimum: want 9000"},
		`"exclusiveMaximum": 9`:                         {4711, "at '/a': exclusiveMaximum: want 9"},
		`"multipleOf": 10`:                              {4711, "at '/a': multipleOf: want 10"},
		`"not": {"const": "hunter2"}`:                   {secret, "at '/a': 'not' failed"},
		`"anyOf": [{"pattern": "^x$"}, {"const": "x"}]`: {secret, "- at '/a': does not match pattern '^x$'"},
		`"$ref": "#/$defs/upper"`:                       {secret, "at '/a': does not match pattern '^[A-Z]+$'"},
	} {
		// Formats are mere annotations in the newest drafts.
		schema := `{"$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"upper": {"pattern": "^[A-Z]+$"}},
			"properties": {"a": {` + keyword + `}}}`
		text, err := json.Marshal(want.value)
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]any
		if err := json.Unmarshal([]byte(`{"a": `+string(text)+`}`), &values); err != nil {
			t.Fatal(err)
		}
		err = checkSchema([]byte(schema), values)
		if err == nil {
			t.Errorf("%s: no fault was found", keyword)
			continue
		}
		if !strings.Contains(err.Error(), want.text) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: %s", keyword, err)
		}
	}
}

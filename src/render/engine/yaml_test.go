// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func read(t *testing.T, files ...source) ([]document, *failure) {
	t.Helper()
	args, err := json.Marshal(map[string]any{"sources": files})
	if err != nil {
		t.Fatal(err)
	}
	result, failed := readYAML(args, nil)
	if failed != nil {
		return nil, failed
	}
	return result.(map[string]any)["documents"].([]document), nil
}

func TestDocumentsAreReadAsKubernetesReadsThem(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"booleans of YAML 1.1, as keys too": {"on: yes\nn: No\n'y': 'y'", `{"false":false,"true":true,"y":"y"}`},
		"octal and hexadecimal":             {"a: 0755\nb: 0o755\nc: 0x1F\n0777: x", `{"511":"x","a":493,"b":493,"c":31}`},
		"whole floats are integers":         {"a: 1.0\nb: 1e3", `{"a":1,"b":1000}`},
		"64 bits keep their digits":         {"a: 18446744073709551615\nb: -9223372036854775808", `{"a":18446744073709551615,"b":-9223372036854775808}`},
		"the last of equal keys":            {"a: 1\na: 2", `{"a":2}`},
		"anchors and merges":                {"a: &x {b: 1}\nc: {<<: *x, d: 2}", `{"a":{"b":1},"c":{"b":1,"d":2}}`},
		"comments":                          {"# x\na: 1 # y", `{"a":1}`},
		"CR LF":                             {"a: 1\r\nb: |\r\n  x\r\n", `{"a":1,"b":"x\n"}`},
		"byte order mark":                   {"\ufeffa: 1", `{"a":1}`},
		"several documents":                 {"---\na: 1\n---\n---\n# none\n--- # x\nb: 2\n---", `{"a":1} {"b":2}`},
		"what follows a document's end":     {"a: 1\n...\nb: 2", `{"a":1}`},
		"JSON":                              {"{\"a\": 1.0, \"b\": 12345678901234567890,\n \"b\": 1e3, \"c\": [0.1, null]}", `{"a":1,"b":1000,"c":[0.1,null]}`},
		"big integers of JSON":              {`{"a": 18446744073709551615}`, `{"a":18446744073709551615}`},
		"nothing":                           {"", ``},
		"null, and an empty map":            {"~\n---\n{}", ``},
	} {
		t.Run(name, func(t *testing.T) {
			documents, failed := read(t, source{Name: "f", Text: test.text})
			if failed != nil {
				t.Fatal(failed.Message)
			}
			var got []string
			for _, document := range documents {
				got = append(got, string(document.Value))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestFaultsNameFileAndDocumentInFleetsWords(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	long := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a, ", 99) + "*a]\n"
	for name, test := range map[string]struct{ text, kind, message string }{
		"syntax":          {"a: {b: x\nc: [", kindInput, "yaml: line 1: did not find expected ',' or '}'"},
		"a string":        {"just text", kindInput, "json: cannot unmarshal string into Go value of type map[string]interface {}"},
		"a list":          {"- a", kindInput, "json: cannot unmarshal array into Go value of type map[string]interface {}"},
		"a tab":           {"a:\n\t- b", kindInput, "yaml: line 2: found character that cannot start any token"},
		"no such anchor":  {"a: *b", kindInput, "yaml: unknown anchor 'b' referenced"},
		"broken JSON":     {`{"a": }`, kindInput, "invalid character '}' looking for beginning of value"},
		"two JSON values": {`{"a": 1} {"b": 2}`, kindInput, "invalid character '{' after top-level value"},
		"a separator":     {"a: 1\n---x", kindInput, "invalid Yaml document separator: x"},
		"no number":       {"a: .nan", kindInput, "json: unsupported value: NaN"},
		"control code":    {"a: \"\x01\"", kindInput, "yaml: control characters are not allowed"},
		"alias bomb":      {bomb, kindInput, "yaml: document contains excessive aliasing"},
		"long aliases":    {long, kindLimit, "the document's aliases expand to more than 67108864 bytes"},
		"depth":           {strings.Repeat("[", 20_000), kindInput, "yaml: exceeded max depth of 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			_, failed := read(t, source{Name: "good", Text: "a: 1"}, source{Name: "bad", Text: "a: 1\n---\n" + test.text})
			if failed == nil {
				t.Fatal("it was read")
			}
			if failed.Kind != test.kind || failed.Message != test.message {
				t.Errorf("got %s %q, want %s %q", failed.Kind, failed.Message, test.kind, test.message)
			}
			if failed.File != "bad" {
				t.Errorf("blamed %s, not bad", failed.File)
			}
		})
	}
}

func TestBytesThatAreNoTextAreKubernetesToJudge(t *testing.T) {
	documents, failed := read(t, source{Name: "f", Bytes: []byte("a: b")})
	if failed != nil || len(documents) != 1 || string(documents[0].Value) != `{"a":"b"}` {
		t.Errorf("bytes: %v %v", documents, failed)
	}
	utf16 := string([]byte{0xff, 0xfe, 'a', 0, ':', 0, ' ', 0, '1', 0})
	for _, text := range []string{"a: \xff", utf16} {
		if _, failed = read(t, source{Name: "f", Bytes: []byte(text)}); failed == nil || failed.Kind != kindInput {
			t.Errorf("%q: %v", text, failed)
		}
	}
}

// The recordings of Fleet's agent: what it could read, and what it said otherwise.
func TestRecordedBundlesAreReadOrRefusedAsByFleet(t *testing.T) {
	const golden = "../../../tests/golden/raw"
	refused := map[string]bool{"invalid-yaml": true, "scalar-doc": true, "templates-dir": true}
	files, err := filepath.Glob(golden + "/*/input/*.y*ml")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings", err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, failed := read(t, source{Name: path, Text: string(text)})
		parts := strings.Split(path, "/")
		if failed != nil && !refused[parts[len(parts)-3]] {
			t.Errorf("%s: %s", path, failed.Message)
		}
	}
}

func TestEveryRequestOfAStreamIsAnsweredOnce(t *testing.T) {
	var in, out bytes.Buffer
	requests := []string{
		`{"id":1,"op":"hello","args":{"protocol":2}}`,
		`{"id":2,"op":"hello","args":{"protocol":7}}`,
		`{"id":3,"op":"dance"}`,
		`{"id":4,"op":"panic"}`,
		`{"id":5,"op":"yaml","args":{"sources":[{"name":"f","text":"a: <b>"}]}}`,
	}
	for _, text := range requests {
		if err := writeFrame(&in, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	fault := func(json.RawMessage, *asker) (any, *failure) { panic("secret") }
	operations := map[string]operation{"hello": hello, "yaml": readYAML, "panic": fault}
	if err := serve(&in, &out, operations); err != nil {
		t.Fatal(err)
	}
	got := map[uint64]string{}
	for out.Len() > 0 {
		frame, err := readFrame(&out)
		if err != nil {
			t.Fatal(err)
		}
		var head request
		if err := json.Unmarshal(frame, &head); err != nil {
			t.Fatal(err)
		}
		got[head.ID] = string(frame)
	}
	for id, want := range map[uint64]string{
		1: `{"id":1,"result":{"protocol":2}}`,
		2: `{"id":2,"error":{"kind":"protocol","message":"the agent speaks protocol 7, this engine 2"}}`,
		3: `{"id":3,"error":{"kind":"protocol","message":"unknown operation \"dance\""}}`,
		4: `{"id":4,"error":{"kind":"internal","message":"the engine panicked"}}`,
		5: `{"id":5,"result":{"documents":[{"file":0,"index":0,"value":{"a":"\u003cb\u003e"}}]}}`,
	} {
		if got[id] != want {
			t.Errorf("answer %d: got %s, want %s", id, got[id], want)
		}
	}
}

func TestAFrameBeyondTheLimitEndsTheStream(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, maxFrame+1)
	if err := serve(bytes.NewReader(head), &bytes.Buffer{}, nil); err == nil {
		t.Error("it was accepted")
	}
	if err := serve(strings.NewReader("\x00\x00\x00\x05{"), &bytes.Buffer{}, nil); err == nil {
		t.Error("a cut frame was accepted")
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// maxFrame bounds a request and an answer. Helm takes a chart of up to 100 MiB unpacked, but what a Content object
// and a release record can hold is far less; the agent has the same constant.
const maxFrame = 64 << 20

// Kinds of failure, as the agent knows them.
const (
	kindInput    = "input"    // the documents are at fault; trying again gives the same answer
	kindLimit    = "limit"    // the documents, or what they expand to, are too large
	kindProtocol = "protocol" // agent and engine do not understand each other
	kindInternal = "internal" // a fault of the engine
)

type request struct {
	ID   uint64          `json:"id"`
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

type answer struct {
	ID     uint64   `json:"id"`
	Result any      `json:"result,omitempty"`
	Error  *failure `json:"error,omitempty"`
}

// failure says what went wrong, and with which document of which file if it is one's fault.
type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	File    string `json:"file,omitempty"`
	Index   int    `json:"index,omitempty"`
}

type operation func(args json.RawMessage) (any, *failure)

// serve answers requests until the input ends. Requests run side by side, as many as there are processors; answers
// come in the order in which they are ready.
func serve(in io.Reader, out io.Writer, operations map[string]operation) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	var (
		writing sync.Mutex
		running sync.WaitGroup
		slots   = make(chan struct{}, runtime.GOMAXPROCS(0))
		broken  = make(chan error, 1)
	)
	defer running.Wait()
	for {
		frame, err := readFrame(reader)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		case err := <-broken:
			return err
		}
		running.Go(func() {
			defer func() { <-slots }()
			text := encode(handle(frame, operations))
			writing.Lock()
			defer writing.Unlock()
			if err := writeFrame(out, text); err != nil {
				select {
				case broken <- err:
				default:
				}
			}
		})
	}
}

func handle(frame []byte, operations map[string]operation) (done answer) {
	var asked request
	if err := json.Unmarshal(frame, &asked); err != nil {
		return answer{Error: &failure{Kind: kindProtocol, Message: err.Error()}}
	}
	done.ID = asked.ID
	run, known := operations[asked.Op]
	if !known {
		done.Error = &failure{Kind: kindProtocol, Message: fmt.Sprintf("unknown operation %q", asked.Op)}
		return done
	}
	defer func() {
		if cause := recover(); cause != nil {
			// The panic's own text may quote the document; the stack does not.
			fmt.Fprintf(os.Stderr, "panic in %s\n%s", asked.Op, debug.Stack())
			done = answer{ID: asked.ID, Error: &failure{Kind: kindInternal, Message: "the engine panicked"}}
		}
	}()
	done.Result, done.Error = run(asked.Args)
	return done
}

func encode(done answer) []byte {
	text, err := json.Marshal(done)
	if err != nil {
		text, err = json.Marshal(answer{ID: done.ID, Error: &failure{Kind: kindInternal, Message: err.Error()}})
	} else if len(text) > maxFrame {
		message := fmt.Sprintf("the answer has %d bytes, more than %d", len(text), maxFrame)
		text, err = json.Marshal(answer{ID: done.ID, Error: &failure{Kind: kindLimit, Message: message}})
	}
	if err != nil {
		panic(err) // two strings and a number always encode
	}
	return text
}

func readFrame(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is larger than %d", size, maxFrame)
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(in, frame); err != nil {
		return nil, fmt.Errorf("a frame was cut: %w", err)
	}
	return frame, nil
}

func writeFrame(out io.Writer, text []byte) error {
	frame := make([]byte, 4, 4+len(text))
	binary.BigEndian.PutUint32(frame, uint32(len(text)))
	_, err := out.Write(append(frame, text...))
	return err
}

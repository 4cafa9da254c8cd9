// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
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

// maxMessage bounds a failure's text. Helm's grows with the depth of includes, and it ends up in a status.
const maxMessage = 8 << 10

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

// operation answers one request; asker puts questions to the agent meanwhile.
type operation func(args json.RawMessage, asker *asker) (any, *failure)

// slowAfter is how long an operation computes before the agent hears that it does. The agent has the same constant.
const slowAfter = 250 * time.Millisecond

// lastWords is how long requests may go on when the input has ended.
const lastWords = time.Second

// leastSlots lets others go on beside requests that compute for long, on a machine with few processors.
const leastSlots = 4

// server answers requests side by side, as many as there are processors; answers come in the order in which they are
// ready.
type server struct {
	operations map[string]operation
	slots      chan struct{}
	ended      chan struct{} // closed when no more replies can come
	writing    sync.Mutex
	out        io.Writer
	broken     chan error
	asking     sync.Mutex
	askers     map[uint64]*asker
}

// serve answers requests until the input ends.
func serve(in io.Reader, out io.Writer, operations map[string]operation) error {
	s := &server{
		operations: operations,
		slots:      make(chan struct{}, max(leastSlots, runtime.GOMAXPROCS(0))),
		ended:      make(chan struct{}),
		out:        out,
		broken:     make(chan error, 1),
		askers:     map[uint64]*asker{},
	}
	var running sync.WaitGroup
	defer waitBriefly(&running)
	defer close(s.ended)
	reader := bufio.NewReaderSize(in, 64<<10)
	for {
		frame, err := readFrame(reader)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case err := <-s.broken:
			return err
		default:
		}
		// Replies must never queue behind requests: those that run may be waiting for them.
		if bytes.HasPrefix(frame, replyPrefix) {
			if err := s.reply(frame); err != nil {
				return err
			}
			continue
		}
		running.Go(func() {
			s.slots <- struct{}{}
			defer func() { <-s.slots }()
			s.write(encode(s.handle(frame)))
		})
	}
}

// waitBriefly lets running requests finish, but not for ever: an endless template must not outlive the agent.
func waitBriefly(running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lastWords):
	}
}

func (s *server) handle(frame []byte) (done answer) {
	var asked request
	if err := json.Unmarshal(frame, &asked); err != nil {
		return answer{Error: &failure{Kind: kindProtocol, Message: err.Error()}}
	}
	done.ID = asked.ID
	run, known := s.operations[asked.Op]
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
	slow := time.AfterFunc(slowAfter, func() { s.write(fmt.Appendf(nil, `{"id":%d,"slow":true}`, asked.ID)) })
	defer slow.Stop()
	asker := s.open(asked.ID)
	defer s.close(asker)
	done.Result, done.Error = run(asked.Args, asker)
	if done.Error != nil && len(done.Error.Message) > maxMessage {
		text := done.Error.Message
		head, tail := text[:maxMessage/2], text[len(text)-maxMessage/2:]
		done.Error.Message = strings.ToValidUTF8(head, "") + " […] " + strings.ToValidUTF8(tail, "")
	}
	return done
}

func (s *server) write(text []byte) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := writeFrame(s.out, text); err != nil {
		select {
		case s.broken <- err:
		default:
		}
	}
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

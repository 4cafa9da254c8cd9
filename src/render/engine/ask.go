// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
)

// replyPrefix begins each frame that answers a question; no request begins so.
var replyPrefix = []byte(`{"reply":`)

// question is what a template wants to know of the world; exactly one part is set.
type question struct {
	Lookup *lookup `json:"lookup,omitempty"`
	Host   *string `json:"host,omitempty"`
}

// lookup asks for one object, or for all of a kind if the name is empty.
type lookup struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// reply is the agent's answer: a value (null = there is none) or an error's text.
type reply struct {
	ID    uint64          `json:"reply"`
	Value json.RawMessage `json:"value"`
	Error *string         `json:"error"`
}

// asker puts one request's questions to the agent, one after the other.
type asker struct {
	id      uint64
	server  *server
	replies chan reply
	asked   bool
}

func (s *server) open(id uint64) *asker {
	a := &asker{id: id, server: s, replies: make(chan reply, 1)}
	s.asking.Lock()
	defer s.asking.Unlock()
	s.askers[id] = a
	return a
}

func (s *server) close(a *asker) {
	s.asking.Lock()
	defer s.asking.Unlock()
	delete(s.askers, a.id)
}

func (s *server) reply(frame []byte) error {
	var given reply
	if err := json.Unmarshal(frame, &given); err != nil {
		return fmt.Errorf("a reply cannot be read: %w", err)
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if a, waits := s.askers[given.ID]; waits {
		select {
		case a.replies <- given:
		default: // not asked for
		}
	}
	return nil
}

// ask waits for the agent's reply and lets another request compute meanwhile.
func (a *asker) ask(what question) (json.RawMessage, error) {
	a.asked = true
	text, err := json.Marshal(struct {
		ID  uint64   `json:"id"`
		Ask question `json:"ask"`
	}{a.id, what})
	if err != nil {
		return nil, err
	}
	<-a.server.slots
	defer func() { a.server.slots <- struct{}{} }()
	a.server.write(text)
	select {
	case given := <-a.replies:
		if given.Error != nil {
			return nil, errors.New(*given.Error)
		}
		return given.Value, nil
	case <-a.server.ended:
		return nil, errors.New("the agent is gone")
	}
}

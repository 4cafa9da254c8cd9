// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"

	"github.com/Masterminds/semver/v3"
)

// resolveVersion picks the version that Helm takes from a repository's index: the very one that is asked for, else the
// newest that fits. Pre-releases fit only a constraint that names one.
func resolveVersion(raw json.RawMessage, _ *asker) (any, *failure) {
	var asked struct {
		Constraint string   `json:"constraint"`
		Versions   []string `json:"versions"`
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return nil, &failure{Kind: kindProtocol, Message: err.Error()}
	}
	wanted := asked.Constraint
	if wanted == "" {
		wanted = "*"
	}
	constraint, err := semver.NewConstraint(wanted)
	if err != nil {
		return nil, &failure{Kind: kindInput, Message: err.Error()}
	}
	type resolved struct {
		Version *string `json:"version"`
	}
	if slices.Contains(asked.Versions, asked.Constraint) && asked.Constraint != "" {
		return resolved{&asked.Constraint}, nil
	}
	var best *semver.Version
	for _, text := range asked.Versions {
		version, err := semver.NewVersion(text)
		if err == nil && constraint.Check(version) && (best == nil || version.GreaterThan(best)) {
			best = version
		}
	}
	if best == nil {
		return resolved{}, nil
	}
	text := best.Original()
	return resolved{&text}, nil
}

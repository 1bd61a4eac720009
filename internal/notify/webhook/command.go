package webhook

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// audited is the part of a command that records its change.
type audited struct{ change audit.Change }

// settings are the settings of an endpoint in the audit log. Secrets are derived, and stored nowhere.
type settings struct {
	URL         string   `json:"url"`
	Types       []string `json:"types,omitempty"` // missing: all
	Description string   `json:"description,omitempty"`
	Disabled    string   `json:"disabled_for,omitempty"`
	Version     int32    `json:"secret_version"`
}

func (e *Endpoint) settings() any {
	return settings{e.URL, e.Types, e.Description, string(e.Disabled), e.Version}
}

// record keeps the change of an endpoint; nil: there is none.
func (a *audited) record(k Key, before, after any) {
	a.change = audit.Change{Kind: audit.Endpoint, Name: k.Name, Before: before, After: after}
}

func (a *audited) changes(c commit.Caller) (commit.Caller, []audit.Change) {
	return c, []audit.Change{a.change}
}

// CreateCommand creates an endpoint. Its answer is an Endpoint; creating an equal one again is a repeat. Returns faults
// WEBHOOK_ENDPOINT_EXISTS_DIFFERENT and WEBHOOK_ENDPOINTS_FULL.
type CreateCommand struct {
	commit.Caller
	Name, URL, Description string
	Types                  []string // sorted, unique

	row *row
	audited
}

// Changes returns the change of the endpoint.
func (c *CreateCommand) Changes() (commit.Caller, []audit.Change) { return c.changes(c.Caller) }

func (c *CreateCommand) Need(tx *Tx) {
	c.row = tx.Want(Key{c.Tenant, c.Name})
	if tx.slots == nil {
		tx.slots = map[int32][]int16{}
	}
	tx.slots[c.Tenant] = nil // Lock reads them
}

// Apply creates the endpoint.
func (c *CreateCommand) Apply(tx *Tx) (any, error) {
	if e, ok := tx.live(c.row); ok {
		var differs []string
		for field, same := range map[string]bool{"url": e.URL == c.URL, "types": slices.Equal(e.Types, c.Types),
			"description": e.Description == c.Description} {
			if !same {
				differs = append(differs, field)
			}
		}
		if len(differs) > 0 {
			slices.Sort(differs)
			return nil, ExistsDifferent.New("there is already a webhook endpoint %s", c.Name).
				Differing(differs, "name").
				With("name", c.Name)
		}
		return commit.Repeat{First: *e}, nil
	}
	slot := c.row.Value.slot // of an endpoint that the batch deletes
	if !c.row.Exists {
		var err error
		if slot, err = tx.freeSlot(c.Tenant); err != nil {
			return nil, err
		}
	}
	s := tx.Change(c.row)
	*s = stored{tid: s.tid, slot: slot, Endpoint: Endpoint{Key: c.row.Key, ID: tx.ID(), URL: c.URL, Types: c.Types,
		Description: c.Description, Version: 1,
		CreatedAt: tx.Now}}
	tx.stamp(&s.Endpoint, c.Caller)
	c.record(c.row.Key, nil, s.settings())
	return s.Endpoint, nil
}

// UpdateCommand changes the fields that are not nil. Its answer is an Endpoint. Returns fault
// WEBHOOK_ENDPOINT_NOT_FOUND.
type UpdateCommand struct {
	commit.Caller
	Name             string
	URL, Description *string
	Types            *[]string // sorted, unique
	Enabled          *bool

	row *row
	audited
}

// Changes returns the change of the endpoint.
func (c *UpdateCommand) Changes() (commit.Caller, []audit.Change) { return c.changes(c.Caller) }

func (c *UpdateCommand) Need(tx *Tx) { c.row = tx.Want(Key{c.Tenant, c.Name}) }

// Apply changes the endpoint. Enabling it, or setting another URL, clears its failures.
func (c *UpdateCommand) Apply(tx *Tx) (any, error) {
	e, err := tx.found(c.row)
	if err != nil {
		return nil, err
	}
	before := e.settings()
	e = tx.change(c.row)
	tx.stamp(e, c.Caller)
	if c.URL != nil && *c.URL != e.URL {
		e.URL, e.FailingSince, e.FailedAt = *c.URL, time.Time{}, time.Time{}
	}
	if c.Description != nil {
		e.Description = *c.Description
	}
	if c.Types != nil {
		e.Types = *c.Types
	}
	switch {
	case c.Enabled == nil:
	case *c.Enabled:
		e.Disabled, e.DisabledAt, e.FailingSince, e.FailedAt = "", time.Time{}, time.Time{}, time.Time{}
	case e.Disabled == "":
		e.Disabled, e.DisabledAt = ByCaller, tx.Now
	}
	c.record(c.row.Key, before, e.settings())
	return *e, nil
}

// RotateCommand replaces the secret Version by a new one; the old one keeps signing for Overlap. Its answer is an
// Endpoint. Replacing the same version again is a repeat, so that a retry does not invalidate the secret that receivers
// have. Returns faults WEBHOOK_ENDPOINT_NOT_FOUND and WEBHOOK_SECRET_REPLACED.
type RotateCommand struct {
	commit.Caller
	Name    string
	Version int32
	Overlap time.Duration

	row *row
	audited
}

// Changes returns the change of the endpoint.
func (c *RotateCommand) Changes() (commit.Caller, []audit.Change) { return c.changes(c.Caller) }

func (c *RotateCommand) Need(tx *Tx) { c.row = tx.Want(Key{c.Tenant, c.Name}) }

// Apply replaces the secret.
func (c *RotateCommand) Apply(tx *Tx) (any, error) {
	e, err := tx.found(c.row)
	switch {
	case err != nil:
		return nil, err
	case e.Version == c.Version+1:
		return commit.Repeat{First: *e}, nil
	case e.Version != c.Version:
		return nil, Replaced.New("the secret of webhook endpoint %s has version %d, not %d", c.Name, e.Version,
			c.Version).With("secret_version", e.Version)
	}
	before := e.settings()
	e = tx.change(c.row)
	tx.stamp(e, c.Caller)
	e.Version++
	e.PreviousExpiresAt = tx.Now.Add(c.Overlap)
	c.record(c.row.Key, before, e.settings())
	return *e, nil
}

// DeleteCommand deletes an endpoint and its secrets. Its answer is the deleted Endpoint. Returns fault
// WEBHOOK_ENDPOINT_NOT_FOUND.
type DeleteCommand struct {
	commit.Caller
	Name string

	row *row
	audited
}

// Changes returns the change of the endpoint.
func (c *DeleteCommand) Changes() (commit.Caller, []audit.Change) { return c.changes(c.Caller) }

func (c *DeleteCommand) Need(tx *Tx) { c.row = tx.Want(Key{c.Tenant, c.Name}) }

// Apply deletes the endpoint.
func (c *DeleteCommand) Apply(tx *Tx) (any, error) {
	e, err := tx.found(c.row)
	if err != nil {
		return nil, err
	}
	was := *e
	tx.Change(c.row).deleted = true
	c.record(c.row.Key, was.settings(), nil)
	return was, nil
}

// ObserveCommand records the outcome of an attempt. Its answer is an Observed.
type ObserveCommand struct {
	Observation

	row *row
	audited
}

// Observed is the endpoint after an observation.
type Observed struct {
	Endpoint
	// Now is true if this observation disabled the endpoint.
	Now bool
}

// Changes returns the change of the endpoint, if the observation disabled it.
func (c *ObserveCommand) Changes() (commit.Caller, []audit.Change) {
	return c.changes(commit.Caller{Tenant: c.Key.Tenant})
}

func (c *ObserveCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply disables an endpoint that is gone, or has failed continuously for FailingLimit. Observations of a deleted or
// disabled endpoint change nothing.
func (c *ObserveCommand) Apply(tx *Tx) (any, error) {
	e, ok := tx.live(c.row)
	if c.record(c.Key, nil, nil); !ok || e.ID != c.ID || e.Disabled != "" || c.OK && e.FailingSince.IsZero() {
		return Observed{}, nil
	}
	before := e.settings()
	e = tx.change(c.row)
	switch {
	case c.OK:
		e.FailingSince, e.FailedAt = time.Time{}, time.Time{}
		return Observed{*e, false}, nil
	case e.FailingSince.IsZero() || tx.Now.Sub(e.FailedAt) > maxGap:
		e.FailingSince = tx.Now
	}
	e.FailedAt = tx.Now
	if e.FailedAt.Before(e.FailingSince) { // the clock went back
		e.FailedAt = e.FailingSince
	}
	switch {
	case c.Gone:
		e.Disabled, e.DisabledAt = Gone, tx.Now
	case tx.Now.Sub(e.FailingSince) >= FailingLimit:
		e.Disabled, e.DisabledAt = Failing, tx.Now
	}
	c.record(c.Key, before, e.settings())
	return Observed{*e, e.Disabled != ""}, nil
}

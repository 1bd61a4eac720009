// Package audit keeps the audit log: one event for each change of a setting, in the commit of the change. It owns the
// table audit_events, which is append-only.
//
// Settings restrict calls: limits and states of accounts, API keys, policies, limits on messages, endpoints, templates,
// machines, sales, gateways. The domains record the effects of calls within these settings.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/audit/internal/db"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Kind is a kind of setting.
type Kind string

const (
	Account  Kind = "account" // the name is code and asset, with a space between them
	Endpoint Kind = "endpoint"
	Gateway  Kind = "gateway"
	Key      Kind = "key"
	Limit    Kind = "limit" // the name is channel, scope and window, with spaces between them
	Machine  Kind = "machine"
	Policy   Kind = "policy" // the name is the operation
	Sale     Kind = "sale"
	Template Kind = "template" // the name is channel and name, with a space between them
	Tenant   Kind = "tenant"
)

// Change is a change of one setting. Before and After encode as JSON objects. Nil: there was no such setting before, or
// there is none any more.
type Change struct {
	Kind          Kind
	Name          string
	Before, After any
}

// Audited is a command that changes settings.
type Audited interface {
	// Changes returns the changes of the last Apply, if it succeeded, and their caller. The principal is empty for
	// changes that the service makes by itself.
	Changes() (commit.Caller, []Change)
}

// event is a change with its caller, ready to be stored.
type event struct {
	caller        commit.Caller
	kind          Kind
	name          string
	before, after string // JSON; empty: nothing
}

// newEvent encodes a change; ok is false if Before and After are equal.
func newEvent(c commit.Caller, x Change) (e event, ok bool, err error) {
	before, err := encode(x.Before)
	if err != nil {
		return e, false, err
	}
	after, err := encode(x.After)
	return event{c, x.Kind, x.Name, string(before), string(after)}, !bytes.Equal(before, after), err
}

func encode(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("audit: encode %T: %w", v, err)
	}
	return text, nil
}

var q db.Queries

// Write adds an event for each change to a transaction outside the engine, unless Before and After are equal.
func Write(ctx context.Context, tx pgx.Tx, c commit.Caller, changes ...Change) error {
	var events []event
	for _, x := range changes {
		e, ok, err := newEvent(c, x)
		if err != nil {
			return err
		}
		if ok {
			events = append(events, e)
		}
	}
	if len(events) == 0 {
		return nil
	}
	return insert(ctx, tx, events, time.Time{})
}

// insert adds events at a time; zero: now.
func insert(ctx context.Context, d commit.DB, events []event, at time.Time) error {
	arg := db.EventInsertParams{Now: at}
	for _, e := range events {
		arg.Tenants, arg.Kinds = append(arg.Tenants, e.caller.Tenant), append(arg.Kinds, string(e.kind))
		arg.Names, arg.Befores = append(arg.Names, e.name), append(arg.Befores, e.before)
		arg.Afters, arg.Principals = append(arg.Afters, e.after), append(arg.Principals, e.caller.Principal)
		arg.KeyIds = append(arg.KeyIds, e.caller.KeyID)
		arg.RequestIds = append(arg.RequestIds, e.caller.RequestID)
		arg.ApprovedBy = append(arg.ApprovedBy, e.caller.ApprovedBy)
	}
	return q.EventInsert(ctx, d, arg)
}

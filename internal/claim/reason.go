package claim

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of claims.
var (
	KeyClaimed = fault.Register(fault.Reason{Name: "KEY_CLAIMED", Class: fault.Duplicate, Code: fault.AlreadyExists,
		Step: fault.Ignore,
		Doc: "The key was already claimed, and the call asks for the first use only, or another owner has claimed " +
			"the key for ever. The metadata has the first claim's owner, result, request id and time, " +
			"and how often the key was used. This use is not counted."})
	LifeDifferent = fault.Register(fault.Reason{Name: "CLAIM_LIFE_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The key is claimed for ever and the call sets a life, or the key has a life and the call sets none."})
	NotFound = fault.Register(fault.Reason{Name: "CLAIM_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "The key is not claimed, or its claim has expired."})
	Foreign = fault.Register(fault.Reason{Name: "CLAIM_FOREIGN", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc: "The claim belongs to another owner. Only that owner, or a caller that has the claim's fence, " +
			"can free the key."})
)

// alreadyClaimed is the refusal, with the first use in its metadata.
func alreadyClaimed(r *Row) error {
	c := &r.Value
	f := KeyClaimed.New("the key was already claimed").With("scope", r.Key.Scope).With("key", r.Key.Key).With("count",
		c.Uses).
		With("first_request_id", c.RequestID).With("first_time", c.ClaimedAt.UTC().Format(time.RFC3339Nano))
	if c.Owner != "" {
		f = f.With("owner", c.Owner)
	}
	if c.Result != "" {
		f = f.With("result", c.Result)
	}
	if !c.ForEver() {
		f = f.With("expire_time", c.ExpiresAt.UTC().Format(time.RFC3339Nano))
	}
	return f
}

func lifeDifferent(r *Row) error {
	f := LifeDifferent.New("the key is claimed for ever: claim it without life")
	if !r.Value.ForEver() {
		f = LifeDifferent.New("the key is claimed with a life: claim it with one")
	}
	return f.With("scope", r.Key.Scope).With("key", r.Key.Key).With("first_request_id", r.Value.RequestID)
}

func foreign(r *Row) error {
	return Foreign.New("the claim belongs to another owner").With("scope", r.Key.Scope).With("key", r.Key.Key).
		With("owner", r.Value.Owner)
}

package client

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
)

// Info is what there is to know of a call besides its answer. Read it after the call.
type Info struct {
	// Key is the Idempotency-Key that the call was made with; empty for reads.
	Key string
	// RequestID names the call in the server's log and rows.
	RequestID string
	// Replayed says that the answer, or the refusal, is that of an earlier call with the same key, or
	// that the biz_no was there before: this call changed nothing.
	Replayed bool
	// Attempts is how often the call was sent, from 1. For a gathered call: how often a batch took it.
	Attempts int
	// NextToken is the submit token that follows the one that was spent, if SubmitToken.Next asked for it and
	// the call went well.
	NextToken string
	// ClaimCount is which use of the key of WithClaim the call was, from 1. 0: there was no claim, the call
	// failed, or its answer is that of an earlier call with the same Idempotency-Key.
	ClaimCount int64
}

type infoContext struct{}

// WithInfo returns a context that makes the next call fill the Info. One call at a time: a call
// overwrites what the one before left.
//
// It is filled for gathered calls too, which the response headers of connect.NewClientContext are not.
func WithInfo(ctx context.Context) (context.Context, *Info) {
	info := new(Info)
	return context.WithValue(ctx, infoContext{}, info), info
}

func infoOf(ctx context.Context) *Info {
	info, _ := ctx.Value(infoContext{}).(*Info)
	return info
}

func (i *Info) read(res connect.AnyResponse, err error) {
	var h http.Header
	if e := (*connect.Error)(nil); errors.As(err, &e) {
		h = e.Meta()
	} else if err == nil {
		h = res.Header()
	}
	i.RequestID, i.Replayed, i.NextToken = h.Get(RequestIDHeader), replayed(h), h.Get(NextTokenHeader)
	i.ClaimCount = claimCount(h.Get(ClaimCountHeader))
}

// Replayed tells whether a call made with connect.NewClientContext was answered from the record: its
// key was used before, or its biz_no was there. For a client WithGather use WithInfo.
func Replayed(info connect.CallInfo) bool {
	return replayed(info.ResponseHeader()) || replayed(info.ResponseTrailer())
}

func replayed(h http.Header) bool { return h.Get(ReplayedHeader) == "true" }

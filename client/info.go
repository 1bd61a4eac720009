package client

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
)

// Info is information about a call besides its answer. Read it after the call.
type Info struct {
	// Key is the call's Idempotency-Key; empty for reads.
	Key string
	// RequestID identifies the call in the server's log and rows.
	RequestID string
	// Replayed reports that the answer or refusal is that of an earlier call with the same key, or that the
	// biz_no existed: this call changed nothing.
	Replayed bool
	// Attempts counts how often the call was sent, from 1; for a gathered call, how often in a batch.
	Attempts int
	// NextToken is the submit token that follows the spent one, if SubmitToken.Next requested it and the call
	// succeeded.
	NextToken string
	// ClaimCount is which use of WithClaim's key the call was, from 1. 0: there was no claim, the call failed,
	// or its answer was replayed.
	ClaimCount int64
}

type infoContext struct{}

// WithInfo returns a context that makes the next call fill the Info. Use it for one call at a time: each call
// overwrites the Info.
//
// Unlike the response headers of connect.NewClientContext, it is also filled for gathered calls.
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

// Replayed reports whether a call made with connect.NewClientContext was replayed: its key was used before, or
// its biz_no existed. For a client with WithGather use WithInfo.
func Replayed(info connect.CallInfo) bool {
	return replayed(info.ResponseHeader()) || replayed(info.ResponseTrailer())
}

func replayed(h http.Header) bool { return h.Get(ReplayedHeader) == "true" }

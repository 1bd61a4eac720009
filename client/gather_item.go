package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// States of an item. Its caller and a lane compete for it by compare-and-swap, so that exactly one of them gets
// it.
const (
	waiting int32 = iota // in line
	sent                 // in a batch
	granted              // its caller has a lane and sends it alone
	left                 // its caller has left
)

// item is a Transfer call that waits in line or is in a batch.
type item struct {
	state    atomic.Int32
	wire     []byte        // encoded as a field of TransferBatchRequest
	deadline time.Time     // of the caller; zero: none
	done     chan struct{} // receives a token when the fields below are set, or a lane was granted

	result    *ledgerv1.TransferBatchResult
	requestID string // of the batch
	err       error  // of the batch
	alone     bool   // its caller must send it alone
}

func newItem(ctx context.Context, key string, m *ledgerv1.TransferRequest) (*item, error) {
	it := &item{done: make(chan struct{}, 1)}
	it.deadline, _ = ctx.Deadline()
	var err error
	it.wire, err = encodeItem(key, m)
	return it, err
}

// Field numbers of TransferBatchRequest.items, and of transfer and idempotency_key in TransferBatchItem.
const (
	itemsField    = 1
	transferField = 1
	itemKeyField  = 2
)

// encodeItem encodes the item as a field of TransferBatchRequest.
func encodeItem(key string, m *ledgerv1.TransferRequest) ([]byte, error) {
	size := proto.Size(m)
	inner := protowire.SizeTag(transferField) + protowire.SizeBytes(size) +
		protowire.SizeTag(itemKeyField) + protowire.SizeBytes(len(key))
	b := make([]byte, 0, protowire.SizeTag(itemsField)+protowire.SizeBytes(inner))
	b = protowire.AppendTag(b, itemsField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(inner))
	b = protowire.AppendTag(b, transferField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	b = protowire.AppendTag(b, itemKeyField, protowire.BytesType)
	return protowire.AppendString(b, key), nil
}

// batchRequest combines encoded items. They are unknown fields of the message, which are marshalled unchanged.
func batchRequest(batch []*item) *ledgerv1.TransferBatchRequest {
	size := 0
	for _, it := range batch {
		size += len(it.wire)
	}
	wire := make([]byte, 0, size)
	for _, it := range batch {
		wire = append(wire, it.wire...)
	}
	m := new(ledgerv1.TransferBatchRequest)
	m.ProtoReflect().SetUnknown(wire)
	return m
}

// grant gives a lane to the caller, which then sends the item alone. It fails if the caller has left.
func (it *item) grant() bool {
	if !it.state.CompareAndSwap(sent, granted) {
		return false
	}
	it.done <- struct{}{}
	return true
}

// leave removes the caller and returns the previous state.
func (it *item) leave() int32 {
	for {
		s := it.state.Load()
		if s == granted || it.state.CompareAndSwap(s, left) {
			return s
		}
	}
}

func (it *item) finish() { it.done <- struct{}{} }

// answered distributes the results to the items.
func answered(batch []*item, results []*ledgerv1.TransferBatchResult, requestID string) {
	var err error
	if len(results) != len(batch) {
		err = connect.NewError(connect.CodeInternal,
			fmt.Errorf("the server gave %d results for %d transfers", len(results), len(batch)))
	}
	for i, it := range batch {
		if it.err, it.requestID = err, requestID; err == nil {
			it.result = results[i]
		}
		it.finish()
	}
}

// refused distributes the error of a whole batch. Usually every item gets it; if the error is about the batch
// as such, every caller sends its item alone.
func refused(batch []*item, err error) {
	e, ok := AsError(err)
	alone := ok && unfit(e)
	for _, it := range batch {
		it.err, it.alone = err, alone
		it.finish()
	}
}

// unfit reports whether a batch was refused for being a batch or for its size, by the server or a proxy. It was
// then not executed, and the keys would protect it anyway.
func unfit(e *Error) bool {
	switch e.Code {
	case connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	case connect.CodeResourceExhausted:
		return e.Class == "" // BUSY has a class
	}
	return false
}

// answer returns the same result as a call that was sent alone.
func (it *item) answer(ctx context.Context) (connect.AnyResponse, error) {
	if it.err != nil {
		return nil, ownError(it.err)
	}
	if e := it.result.GetError(); e != nil {
		made := wireError(e)
		it.mark(made.Meta())
		return nil, made
	}
	res := connect.NewResponse(&ledgerv1.TransferResponse{Transfer: it.result.GetTransfer(),
		Existed: it.result.GetExisted()})
	if infoOf(ctx) != nil {
		it.mark(res.Header())
	}
	return res, nil
}

// mark sets the response headers of a single call.
func (it *item) mark(h http.Header) {
	h.Set(RequestIDHeader, it.requestID)
	if it.result.GetReplayed() || it.result.GetExisted() {
		h.Set(ReplayedHeader, "true")
	}
}

// ownError copies a batch's error, because callers may change an error's metadata.
func ownError(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	made := connect.NewError(e.Code(), e.Unwrap())
	if connect.IsWireError(e) {
		made = connect.NewWireError(e.Code(), e.Unwrap())
	}
	for _, d := range e.Details() {
		made.AddDetail(d)
	}
	maps.Copy(made.Meta(), e.Meta().Clone())
	return made
}

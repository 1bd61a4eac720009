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

// The states of an item. Its caller leaves, and a lane takes it, by compare-and-swap, so that exactly
// one of them has it.
const (
	waiting int32 = iota // in line
	sent                 // in a batch
	granted              // its caller has a lane, and sends it alone
	left                 // its caller is gone
)

// item is a Transfer call that waits in line or travels in a batch.
type item struct {
	state    atomic.Int32
	wire     []byte        // as it stands in a TransferBatchRequest
	deadline time.Time     // of its caller; zero: none
	done     chan struct{} // holds a token when what is below is set, or a lane was granted

	result    *ledgerv1.TransferBatchResult
	requestID string // of the batch
	err       error  // of the batch
	alone     bool   // its caller is to send it by itself
}

func newItem(ctx context.Context, key string, m *ledgerv1.TransferRequest) (*item, error) {
	it := &item{done: make(chan struct{}, 1)}
	it.deadline, _ = ctx.Deadline()
	var err error
	it.wire, err = encodeItem(key, m)
	return it, err
}

// The field numbers of TransferBatchRequest.items, and of a TransferBatchItem's transfer and
// idempotency_key.
const (
	itemsField    = 1
	transferField = 1
	itemKeyField  = 2
)

// encodeItem is the item as a field of TransferBatchRequest.
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

// batchRequest puts encoded items together. To the message they are bytes that it does not know, which
// it writes as they are.
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

// grant lets the caller send the item by himself, on a lane that is now his. It fails when he has left.
func (it *item) grant() bool {
	if !it.state.CompareAndSwap(sent, granted) {
		return false
	}
	it.done <- struct{}{}
	return true
}

// leave takes the caller out, and returns the state that it found.
func (it *item) leave() int32 {
	for {
		s := it.state.Load()
		if s == granted || it.state.CompareAndSwap(s, left) {
			return s
		}
	}
}

func (it *item) finish() { it.done <- struct{}{} }

// answered gives every item its result.
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

// refused deals with the error of a batch as a whole. Usually it is everybody's; but when it is for the
// batch as such, everybody asks alone.
func refused(batch []*item, err error) {
	e, ok := AsError(err)
	alone := ok && unfit(e)
	for _, it := range batch {
		it.err, it.alone = err, alone
		it.finish()
	}
}

// unfit tells whether a batch was refused for being one, or for its size, by the server or by something
// on the way. It has then not been done, and the keys would hold in any case.
func unfit(e *Error) bool {
	switch e.Code {
	case connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	case connect.CodeResourceExhausted:
		return e.Class == "" // BUSY has a class
	}
	return false
}

// answer is what the call returns: the same as if it had been alone.
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

// mark sets the headers that a lone answer would have.
func (it *item) mark(h http.Header) {
	h.Set(RequestIDHeader, it.requestID)
	if it.result.GetReplayed() || it.result.GetExisted() {
		h.Set(ReplayedHeader, "true")
	}
}

// ownError is a copy of a batch's error, since errors have metadata that their holders may change.
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

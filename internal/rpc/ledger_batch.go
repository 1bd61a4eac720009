package rpc

import (
	"context"
	"encoding/binary"
	"fmt"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	batchName     = "ledger.transfer_batch"
	batchItemName = "ledger.transfer_batch_item"
)

func (s *Ledger) TransferBatch(ctx context.Context, r *pb.TransferBatchRequest) (*pb.TransferBatchResponse, error) {
	if r.GetAllOrNothing() {
		return run(ctx, s.Mutations, s.transferAll(), r)
	}
	c := callOf(ctx)
	var d decoder
	if r.GetDryRun() {
		d.bad("dry_run", "requires all_or_nothing")
	}
	d.notGuarded(c, c.policy(batchName, transferName))
	if err := d.err(); err != nil {
		return nil, err
	}
	res, err := s.transferEach(ctx, c, r)
	return res.reply(ctx, err)
}

// notGuarded rejects a submit token and a claim on a batch of independent items.
func (d *decoder) notGuarded(c *call, p access.Policy) {
	if c.guarded() || p.TokenRequired {
		d.bad("all_or_nothing", "must be set in a call with a submit token or a claim, which guard one atomic mutation")
	}
}

// transferEach submits each item independently. An item has its own key, or one derived from the call's key and the
// item's index, so that a retry of an interrupted batch continues where it ended.
func (s *Ledger) transferEach(ctx context.Context, c *call,
	r *pb.TransferBatchRequest) (result[*pb.TransferBatchResponse], error) {
	b := newItems[*pb.TransferResponse](len(r.GetItems()))
	caller := c.caller()
	var batchFingerprint []byte // set if item keys are derived from the call's key
	if c.key != "" {
		batchFingerprint = s.fingerprint(r)
	}
	for i, item := range r.GetItems() {
		key, p, err := s.readItem(c, item, i, batchFingerprint)
		if err != nil {
			b.fail(i, err)
			continue
		}
		b.add(c, i, key, item.GetTransfer(), transfer(caller, item.GetTransfer(), p))
	}
	replayed, err := b.run(ctx, s.Mutations, "items")
	if err != nil {
		return result[*pb.TransferBatchResponse]{}, err
	}
	res := &pb.TransferBatchResponse{Results: make([]*pb.TransferBatchResult, len(b))}
	for i, x := range b {
		own := r.GetItems()[i].GetIdempotencyKey() != "" // the header reports a replay of the call's key
		res.Results[i] = &pb.TransferBatchResult{Transfer: x.response.GetTransfer(), Existed: x.response.GetExisted(),
			Error: c.itemError(ctx, x.err), Replayed: own && x.recorded}
	}
	return result[*pb.TransferBatchResponse]{response: res, replayed: replayed}, nil
}

// readItem decodes an independent item like a call of its own, its key first.
func (s *Ledger) readItem(c *call, item *pb.TransferBatchItem, i int,
	batchFingerprint []byte) (*commit.Key, ledger.TransferParams, error) {
	if err := checkItem(item); err != nil {
		return nil, ledger.TransferParams{}, err
	}
	key, err := s.itemKey(c, item, i, batchFingerprint)
	if err != nil {
		return nil, ledger.TransferParams{}, err
	}
	var d decoder
	p := d.item(item, "")
	return key, p, d.err()
}

// item decodes the transfer of an item.
func (d *decoder) item(item *pb.TransferBatchItem, path string) ledger.TransferParams {
	if item.GetTransfer().GetDryRun() {
		d.bad(path+"dry_run", "must not be set on an item: set dry_run of the batch")
	}
	return d.transfer(item.GetTransfer(), path)
}

// itemKey returns the request key of an item, or nil.
func (s *Ledger) itemKey(c *call, item *pb.TransferBatchItem, i int, batchFingerprint []byte) (*commit.Key, error) {
	policy := c.policy(transferName, batchName)
	if item.GetIdempotencyKey() != "" {
		key, err := ParseKey(item.GetIdempotencyKey())
		if err != nil {
			return nil, err
		}
		return &commit.Key{Principal: c.identity.Principal, Operation: transferName, Key: key,
			Fingerprint: s.fingerprint(item.GetTransfer()), Life: s.life(c, policy)}, nil
	}
	switch {
	case c.key == "" && policy.KeyRequired:
		return nil, keyMissing(transferName)
	case c.key == "":
		return nil, nil
	}
	// Every item has the fingerprint of the batch: the same key with another batch matches no item.
	return &commit.Key{Principal: c.identity.Principal, Operation: batchItemName,
		Key: fmt.Sprintf("%s#%d", c.key, i), Fingerprint: batchFingerprint, Life: s.life(c, policy)}, nil
}

// transferAll makes the batch one mutation. The request key records only the ids of its transfers: transfers never
// change.
func (s *Ledger) transferAll() operation[*pb.TransferBatchRequest, *pb.TransferBatchResponse] {
	return operation[*pb.TransferBatchRequest, *pb.TransferBatchResponse]{name: batchName,
		read: func(c *call, d *decoder, r *pb.TransferBatchRequest) mutation[*pb.TransferBatchResponse] {
			cmd := &ledger.TransferAllCommand{Transfers: make([]ledger.TransferCommand, len(r.GetItems()))}
			rows := 0
			for i, item := range r.GetItems() {
				if item.GetIdempotencyKey() != "" {
					d.bad(fmt.Sprintf("items[%d].idempotency_key", i),
						"must be empty with all_or_nothing: send the header Idempotency-Key instead")
				}
				p := d.item(item, fmt.Sprintf("items[%d].transfer.", i))
				rows += len(p.Postings)
				cmd.Transfers[i] = ledger.TransferCommand{Caller: c.caller(), TransferParams: p}
			}
			m := newMutation(flow.Ledger(cmd), rows, renderAll)
			m.inner, m.toRecord = []string{transferName}, encodeIDs
			m.fromRecord = func(ctx context.Context, b []byte) (*pb.TransferBatchResponse, error) {
				made, err := s.decodeIDs(ctx, c.identity.Tenant, b)
				return renderAll(made, false), err
			}
			return m
		}}
}

func renderAll(made []ledger.TransferResult, _ bool) *pb.TransferBatchResponse {
	return &pb.TransferBatchResponse{Results: each(made, func(m ledger.TransferResult) *pb.TransferBatchResult {
		return &pb.TransferBatchResult{Transfer: renderTransfer(m.Transfer, true), Existed: m.Existed}
	})}
}

// encodeIDs encodes the transfers of an answer, each as 2*id, plus 1 if the transfer existed.
func encodeIDs(a flow.Result) ([]byte, error) {
	var b []byte
	for _, m := range a.Value.([]ledger.TransferResult) {
		n := uint64(m.Transfer.ID) << 1
		if m.Existed {
			n |= 1
		}
		b = binary.AppendUvarint(b, n)
	}
	return b, nil
}

func (s *Ledger) decodeIDs(ctx context.Context, tenant int32, b []byte) ([]ledger.TransferResult, error) {
	var made []ledger.TransferResult
	var ids []int64
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return nil, fmt.Errorf("read a recorded batch answer: %d bytes left over", len(b))
		}
		ids = append(ids, int64(n>>1))
		made = append(made, ledger.TransferResult{Existed: n&1 == 1})
		b = b[size:]
	}
	transfers, err := s.Reader.TransfersByID(ctx, tenant, ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[int64]*ledger.Transfer, len(transfers))
	for _, t := range transfers {
		byID[t.ID] = t
	}
	for i, id := range ids {
		if made[i].Transfer = byID[id]; made[i].Transfer == nil {
			return nil, fmt.Errorf("transfer %d of a recorded answer is gone", id)
		}
	}
	return made, nil
}

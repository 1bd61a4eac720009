package rpc

import (
	"context"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	batchOperation     = "ledger.transfer_batch"
	batchItemOperation = "ledger.transfer_batch_item"
)

// TransferBatch makes many transfers, each for itself or all or none.
func (s *Ledger) TransferBatch(ctx context.Context,
	r *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	if r.GetAllOrNothing() {
		return s.transferAll(ctx, r)
	}
	var d decoder
	if r.GetDryRun() {
		d.bad("dry_run", "requires all_or_nothing")
	}
	if c := callOf(ctx); len(c.conditions) > 0 || c.policy(batchOperation, transferOperation).TokenRequired {
		d.bad("all_or_nothing", "must be set in a call with a submit token or a claim, which guard one atomic mutation")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return s.transferEach(ctx, r)
}

// transferEach runs every item as a work of its own. An item's key is the one it brings, or is made of
// the call's key and its place, so that a batch that was cut off goes on where it was.
func (s *Ledger) transferEach(ctx context.Context,
	r *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	c := callOf(ctx)
	res := &ledgerv1.TransferBatchResponse{Results: make([]*ledgerv1.TransferBatchResult, len(r.GetItems()))}
	mutations := make([]mutation[*ledgerv1.TransferResponse], len(r.GetItems()))
	rendered := make([]*ledgerv1.TransferResponse, len(r.GetItems()))
	submissions := make([]flow.Submission, 0, len(r.GetItems()))
	at := make([]int, 0, len(r.GetItems())) // of submissions in items
	caller := c.caller()
	var whole []byte // the batch's own fingerprint, when keys are made of the call's
	if c.key != "" {
		whole = fingerprint(r)
	}
	for i, item := range r.GetItems() {
		key, p, err := s.readItem(c, item, i, whole)
		if err != nil {
			res.Results[i] = &ledgerv1.TransferBatchResult{Error: c.itemError(ctx, err)}
			continue
		}
		mutations[i] = transfer(caller, item.GetTransfer(), p)
		submissions, at = append(submissions, mutations[i].submission(c, key, &rendered[i])), append(at, i)
	}
	results := s.Engine.DoAll(ctx, submissions)
	if err := notAdmitted(results); err != nil {
		return nil, err
	}
	c.replayed = len(submissions) == len(r.GetItems())
	for n, result := range results {
		i := at[n]
		own := r.GetItems()[i].GetIdempotencyKey() != "" // what the call's key replays, the header tells of the whole
		c.replayed = c.replayed && (result.Outcome.Replayed || result.Outcome.Existed)
		res.Results[i] = &ledgerv1.TransferBatchResult{Replayed: own && result.Outcome.Replayed}
		t, err := (*ledgerv1.TransferResponse)(nil), result.Err
		if err == nil {
			t, err = mutations[i].answer(result.Outcome, rendered[i])
		}
		if err != nil {
			res.Results[i].Error = c.itemError(ctx, err)
		}
		res.Results[i].Transfer, res.Results[i].Existed = t.GetTransfer(), t.GetExisted()
	}
	return res, nil
}

// readItem reads an item that stands for itself, its key first, as of a lone call.
func (s *Ledger) readItem(c *call, item *ledgerv1.TransferBatchItem, i int,
	whole []byte) (*commit.Key, ledger.TransferParams, error) {
	if err := c.bad[i]; err != nil {
		return nil, ledger.TransferParams{}, err
	}
	key, err := s.itemKey(c, item, i, whole)
	if err != nil {
		return nil, ledger.TransferParams{}, err
	}
	var d decoder
	p := d.item(item, "")
	return key, p, d.err()
}

// item reads the transfer of an item.
func (d *decoder) item(item *ledgerv1.TransferBatchItem, path string) ledger.TransferParams {
	if item.GetTransfer().GetDryRun() {
		d.bad(path+"dry_run", "must not be set on an item: set dry_run of the batch")
	}
	return d.transfer(item.GetTransfer(), path)
}

// itemKey is the request key of an item, or nil.
func (s *Ledger) itemKey(c *call, item *ledgerv1.TransferBatchItem, i int, whole []byte) (*commit.Key, error) {
	policy := c.policy(transferOperation, batchOperation)
	if item.GetIdempotencyKey() != "" {
		key, err := ParseKey(item.GetIdempotencyKey())
		if err != nil {
			return nil, err
		}
		return &commit.Key{Principal: c.identity.Principal, Operation: transferOperation, Key: key,
			Fingerprint: fingerprint(item.GetTransfer()), Life: s.life(c, policy)}, nil
	}
	switch {
	case c.key == "" && policy.KeyRequired:
		return nil, keyMissing(transferOperation)
	case c.key == "":
		return nil, nil
	}
	// The fingerprint is that of the whole batch: the same key with another batch fits no item.
	return &commit.Key{Principal: c.identity.Principal, Operation: batchItemOperation,
		Key:         fmt.Sprintf("%s#%d", c.key, i),
		Fingerprint: whole, Life: s.life(c, policy)}, nil
}

func (c *call) itemError(ctx context.Context, err error) *ledgerv1.ItemError {
	f := faultOf(ctx, err)
	c.note(ctx, f, err)
	return itemError(f, c.requestID)
}

// transferAll runs the batch as one command. What is recorded of its answer are the ids: the rows are
// immutable, and are shown again from there.
func (s *Ledger) transferAll(ctx context.Context,
	r *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	c := callOf(ctx)
	cmd := &ledger.TransferAllCommand{Transfers: make([]ledger.TransferCommand, len(r.GetItems()))}
	var d decoder
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
	if err := d.err(); err != nil {
		return nil, err
	}
	policy := c.policy(batchOperation, transferOperation)
	if r.GetDryRun() {
		policy = access.Policy{}
	}
	c.requireToken(policy)
	if err := c.spendToken(batchOperation, r.GetDryRun(), func(answer any, _ bool) (proto.Message, error) {
		return renderAll(answer.([]ledger.TransferResult)), nil
	}); err != nil {
		return nil, err
	}
	w := flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID,
		Command: flow.Behind(flow.Ledger(cmd), c.conditions...), Rows: rows,
		Bytes: 512 + proto.Size(r), DryRun: r.GetDryRun()}
	key, err := s.requestKey(c, batchOperation, policy, r)
	if err != nil {
		return nil, err
	}
	if key != nil {
		w.Key, w.Encode = key, encodeIDs
	}
	out, err := s.Engine.Do(ctx, w)
	c.replayed = out.Replayed
	if err == nil {
		err = c.carry(ctx, s.Mutations, out)
	}
	if err != nil {
		return nil, err
	}
	made, _ := out.Answer.([]ledger.TransferResult)
	if out.Recorded != nil {
		if made, err = s.decodeIDs(ctx, c.identity.Tenant, out.Recorded); err != nil {
			return nil, err
		}
	}
	return renderAll(made), nil
}

func renderAll(made []ledger.TransferResult) *ledgerv1.TransferBatchResponse {
	res := &ledgerv1.TransferBatchResponse{Results: make([]*ledgerv1.TransferBatchResult, len(made))}
	for i, m := range made {
		res.Results[i] = &ledgerv1.TransferBatchResult{Transfer: renderTransfer(m.Transfer, true), Existed: m.Existed}
	}
	return res
}

// encodeIDs writes down the transfers of an answer: twice the id, plus one if it was there before.
func encodeIDs(answer any) ([]byte, error) {
	var b []byte
	for _, m := range answer.([]ledger.TransferResult) {
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
		ids, made = append(ids, int64(n>>1)), append(made, ledger.TransferResult{Existed: n&1 == 1})
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

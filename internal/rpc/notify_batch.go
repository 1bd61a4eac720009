package rpc

import (
	"context"
	"fmt"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
)

const (
	sendBatchName     = "notify.send_batch"
	sendBatchItemName = "notify.send_batch_item"
)

func (s *Notify) SendBatch(ctx context.Context, r *pb.SendBatchRequest) (*pb.SendBatchResponse, error) {
	if r.GetAllOrNothing() {
		return run(ctx, s.Mutations, sendAllOperation, r)
	}
	c := callOf(ctx)
	policy := c.policy(sendBatchName, sendName)
	var d decoder
	if d.notGuarded(c, policy); c.key == "" && policy.KeyRequired {
		return nil, keyMissing(sendBatchName)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	res, err := s.sendEach(ctx, c, policy, r)
	return res.reply(ctx, err)
}

// sendAllOperation is not registered for Execute, which can have many sends itself.
var sendAllOperation = operation[*pb.SendBatchRequest, *pb.SendBatchResponse]{name: sendBatchName,
	read: func(c *call, d *decoder, r *pb.SendBatchRequest) mutation[*pb.SendBatchResponse] {
		cmd := &notify.SendAllCommand{Sends: make([]*notify.SendCommand, len(r.GetItems()))}
		for i, item := range r.GetItems() {
			var own decoder
			cmd.Sends[i] = sendCommand(c.caller(), &own, item)
			if err := own.err(); err != nil {
				d.addProblems(fmt.Sprintf("items[%d].", i), err)
			}
		}
		rows := sendRows * len(cmd.Sends)
		m := newMutation(flow.Notify(cmd), rows, func(sent []notify.Accepted, _ bool) *pb.SendBatchResponse {
			return &pb.SendBatchResponse{Results: each(sent, func(m notify.Accepted) *pb.SendBatchResult {
				return &pb.SendBatchResult{MessageId: m.Message.ID, Existed: m.Existed}
			})}
		})
		m.inner = []string{sendName}
		return m
	}}

// sendEach submits each item independently. Its key is derived from the call's key and the item's index, so that a
// retry of an interrupted batch continues where it ended.
func (s *Notify) sendEach(ctx context.Context, c *call, policy access.Policy,
	r *pb.SendBatchRequest) (result[*pb.SendBatchResponse], error) {
	b := newItems[*pb.SendResponse](len(r.GetItems()))
	var batchFingerprint []byte
	if c.key != "" {
		batchFingerprint = s.fingerprint(r)
	}
	for i, item := range r.GetItems() {
		if err := check(item); err != nil {
			b.fail(i, err)
			continue
		}
		m, err := sendOperation.decode(c, item)
		if err != nil {
			b.fail(i, err)
			continue
		}
		var key *commit.Key
		if c.key != "" {
			key = &commit.Key{Principal: c.identity.Principal, Operation: sendBatchItemName,
				Key: fmt.Sprintf("%s#%d", c.key, i), Fingerprint: batchFingerprint, Life: s.life(c, policy)}
		}
		b.add(c, i, key, item, m)
	}
	replayed, err := b.run(ctx, s.Mutations, "items")
	if err != nil {
		return result[*pb.SendBatchResponse]{}, err
	}
	res := &pb.SendBatchResponse{Results: make([]*pb.SendBatchResult, len(b))}
	for i, x := range b {
		res.Results[i] = &pb.SendBatchResult{MessageId: x.response.GetMessage().GetId(),
			Existed: x.response.GetExisted(), Error: c.itemError(ctx, x.err)}
	}
	return result[*pb.SendBatchResponse]{response: res, replayed: replayed}, nil
}

package rpc

import (
	"context"
	"fmt"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
)

const (
	sendBatchOperation     = "notify.send_batch"
	sendBatchItemOperation = "notify.send_batch_item"
)

// SendBatch accepts many messages, each for itself or all or none.
func (s *Notify) SendBatch(ctx context.Context, r *notifyv1.SendBatchRequest) (*notifyv1.SendBatchResponse, error) {
	c := callOf(ctx)
	if r.GetAllOrNothing() {
		return run(ctx, s.Mutations, sendAllCall, r)
	}
	var d decoder
	if len(c.conditions) > 0 || c.policy(sendBatchOperation, sendOperation).TokenRequired {
		d.bad("all_or_nothing", "must be set in a call with a submit token or a claim, which guard one atomic mutation")
	}
	if c.key == "" && c.policy(sendBatchOperation, sendOperation).KeyRequired {
		return nil, keyMissing(sendBatchOperation)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return s.sendEach(ctx, r)
}

// sendAllCall is not in Execute: it is one.
var sendAllCall = operation[*notifyv1.SendBatchRequest, *notifyv1.SendBatchResponse]{name: sendBatchOperation,
	read: func(c *call, d *decoder, r *notifyv1.SendBatchRequest) mutation[*notifyv1.SendBatchResponse] {
		cmd := &notify.SendAllCommand{Sends: make([]*notify.SendCommand, len(r.GetItems()))}
		for i, item := range r.GetItems() {
			var own decoder
			cmd.Sends[i] = sendCommand(c, &own, item)
			if err := own.err(); err != nil {
				d.take(fmt.Sprintf("items[%d].", i), err)
			}
		}
		return mutation[*notifyv1.SendBatchResponse]{command: flow.Notify(cmd), rows: sendRows * len(cmd.Sends),
			inner: []string{sendOperation},
			render: func(answer any, _ bool) (*notifyv1.SendBatchResponse, error) {
				res := &notifyv1.SendBatchResponse{}
				for _, m := range answer.([]notify.Accepted) {
					res.Results = append(res.Results,
						&notifyv1.SendBatchResult{MessageId: m.Message.ID, Existed: m.Existed})
				}
				return res, nil
			}}
	}}

// sendEach runs every item as a work of its own. Its key is made of the call's key and its place, so that a batch that
// was cut off goes on where it was.
func (s *Notify) sendEach(ctx context.Context, r *notifyv1.SendBatchRequest) (*notifyv1.SendBatchResponse, error) {
	c := callOf(ctx)
	res := &notifyv1.SendBatchResponse{Results: make([]*notifyv1.SendBatchResult, len(r.GetItems()))}
	mutations := make([]mutation[*notifyv1.SendResponse], len(r.GetItems()))
	rendered := make([]*notifyv1.SendResponse, len(r.GetItems()))
	var submissions []flow.Submission
	var at []int // of submissions in items
	var whole []byte
	if c.key != "" {
		whole = s.fingerprint(r)
	}
	for i, item := range r.GetItems() {
		var d decoder
		mutations[i] = sendCall.read(c, &d, item)
		mutations[i].request = item
		if err := d.err(); err != nil {
			res.Results[i] = &notifyv1.SendBatchResult{Error: c.itemError(ctx, err)}
			continue
		}
		var key *commit.Key
		if c.key != "" {
			key = &commit.Key{Principal: c.identity.Principal, Operation: sendBatchItemOperation,
				Key:         fmt.Sprintf("%s#%d", c.key, i),
				Fingerprint: whole, Life: s.life(c, c.policy(sendBatchOperation, sendOperation))}
		}
		submissions, at = append(submissions, mutations[i].submission(c, key, &rendered[i])), append(at, i)
	}
	results := s.Engine.DoAll(ctx, submissions)
	if err := notAdmitted(results); err != nil {
		return nil, err
	}
	c.replayed = len(submissions) == len(r.GetItems())
	for n, result := range results {
		i := at[n]
		c.replayed = c.replayed && (result.Outcome.Replayed || result.Outcome.Existed)
		res.Results[i] = &notifyv1.SendBatchResult{}
		sent, err := (*notifyv1.SendResponse)(nil), result.Err
		if err == nil {
			sent, err = mutations[i].answer(result.Outcome, rendered[i])
		}
		if err != nil {
			res.Results[i].Error = c.itemError(ctx, err)
		}
		res.Results[i].MessageId, res.Results[i].Existed = sent.GetMessage().GetMessageId(), sent.GetExisted()
	}
	return res, nil
}

package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func message(id string) *inboxv1.MessageKey {
	return &inboxv1.MessageKey{ConsumerGroup: "billing", MessageId: id}
}

func deliveryOf(content string) *inboxv1.Delivery {
	return &inboxv1.Delivery{Topic: "orders", Content: []byte(content)}
}

// heldFence returns the fence of messages begun by prepare.
const heldFence = 7

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ok(c, "Inbox.Receive", &inboxv1.ReceiveRequest{Key: message(x.paid), Delivery: deliveryOf(secretNote),
			Result: secretNote}, new(inboxv1.ReceiveResponse), id...)
		ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message(x.held), FailureText: secretNote, Permanent: true},
			new(inboxv1.FailResponse), id...)
	})
	goWell = append(goWell, "Inbox.Receive", "Inbox.Begin", "Inbox.ListMessages")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Inbox.Receive": func(x resources) []proto.Message {
			return all(&inboxv1.ReceiveRequest{Key: message(x.paid)}, &inboxv1.ReceiveRequest{Key: message(x.held)})
		},
		"Inbox.Begin": func(x resources) []proto.Message { return all(&inboxv1.BeginRequest{Key: message(x.paid)}) },
		"Inbox.Complete": func(x resources) []proto.Message {
			return all(&inboxv1.CompleteRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.Fail": func(x resources) []proto.Message {
			return all(&inboxv1.FailRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.Extend": func(x resources) []proto.Message {
			return all(&inboxv1.ExtendRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.RequeueMessages": func(x resources) []proto.Message {
			return all(&inboxv1.RequeueMessagesRequest{Target: &inboxv1.RequeueMessagesRequest_Key{Key: message(x.
				held)}})
		},
		"Inbox.GetMessage": func(x resources) []proto.Message {
			return all(&inboxv1.GetMessageRequest{Key: message(x.paid)})
		},
		"Inbox.ListMessages": func(resources) []proto.Message {
			return all(&inboxv1.ListMessagesRequest{},
				&inboxv1.ListMessagesRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD})
		},
	} {
		examples[name] = example
	}

	var rows atomic.Int64 // made so far: rows of one batch need different numbers
	preparers["Inbox"] = func(c *caller, tag string) {
		for _, kind := range []string{"dead-", "requeue-"} {
			ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message(kind + tag), FailureText: "broken", Permanent: true},
				new(inboxv1.FailResponse))
		}
		ok(c, "Inbox.Receive", &inboxv1.ReceiveRequest{Key: message("done-" + tag)}, new(inboxv1.ReceiveResponse))
		for _, kind := range []string{"held-", "failed-", "extend-"} {
			made, err := c.Pool.Exec(context.Background(), `insert into inbox_messages (tenant_id, consumer_group,
					message_id, part, inbox_id, topic, state, holder, fence, lease_expires_at, attempts, max_attempts,
					backoff_ms, max_backoff_ms, received_at, begun_at, principal, request_id, last_request_id)
				select $1, 'billing', $2, '', (batch_id << 14) + 16000 + $3, 'orders', 'processing',
					'h', $4, now() + interval '1 hour', 1, 10, 1000, 1000, recorded_at, recorded_at, 'p', 'r', 'r'
				from commit_batches where commands > 0 order by batch_id desc
				limit 1`, c.tenant(), kind+tag, rows.Add(1)%384, heldFence)
			if err != nil || made.RowsAffected() != 1 {
				c.T.Fatal(made, err)
			}
		}
	}
	requeue := func(id string) *inboxv1.RequeueMessagesRequest {
		return &inboxv1.RequeueMessagesRequest{Target: &inboxv1.RequeueMessagesRequest_Key{Key: message(id)}}
	}
	for name, x := range map[string]change{
		"Inbox.Receive": {reason: "MESSAGE_DEAD", well: func(tag string) proto.Message {
			return &inboxv1.ReceiveRequest{Key: message("new-" + tag), Delivery: deliveryOf("x"), Result: "seen"}
		}, refused: func(tag string) proto.Message { return &inboxv1.ReceiveRequest{Key: message("dead-" + tag)} }},
		"Inbox.Begin": {well: func(tag string) proto.Message {
			return &inboxv1.BeginRequest{Key: message("begin-" + tag), Delivery: deliveryOf("x"),
				Lease: durationpb.New(time.Hour)}
		}},
		"Inbox.Complete": {well: func(tag string) proto.Message {
			return &inboxv1.CompleteRequest{Key: message("held-" + tag), Fence: heldFence, Result: "done"}
		}},
		"Inbox.Fail": {well: func(tag string) proto.Message {
			return &inboxv1.FailRequest{Key: message("failed-" + tag), Fence: heldFence, FailureText: "no"}
		}},
		"Inbox.Extend": {well: func(tag string) proto.Message {
			return &inboxv1.ExtendRequest{Key: message("extend-" + tag), Fence: heldFence,
				Lease: durationpb.New(time.Minute)}
		}},
		"Inbox.RequeueMessages": {reason: "MESSAGE_NOT_DEAD",
			well:    func(tag string) proto.Message { return requeue("requeue-" + tag) },
			refused: func(tag string) proto.Message { return requeue("done-" + tag) }},
	} {
		changes[name] = x
	}
}

func TestAMessageAndItsEffectCommitTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	receive := &inboxv1.ReceiveRequest{Key: message("m1"), Delivery: deliveryOf("pay 5"), Result: "paid"}
	// The operations have no names of their own: only the message prevents a second effect.
	refused := execute(operation("", receive), operation("", pay("p", "u:a", "world", "1000")))
	if a := c.call(connectJSON, "Batch.Execute", refused); a.Reason(t) != "INSUFFICIENT_FUNDS" ||
		a.State("operation") != "1" {
		t.Errorf("%s %s", a.Code, a.Message)
	}
	missing := c.call(connectJSON, "Inbox.GetMessage", &inboxv1.GetMessageRequest{Key: message("m1")})
	missing.wants(t, "the message of a refused effect", "MESSAGE_NOT_FOUND")
	missing.wantsState(t, map[string]string{"consumer_group": message("m1").GetConsumerGroup(), "message_id": "m1"})
	failed := ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message("m1"), FailureText: "no money",
		Delivery: deliveryOf("pay 5")}, new(inboxv1.FailResponse)).GetMessage()
	if failed.GetState() != inboxv1.MessageState_MESSAGE_STATE_FAILED || failed.GetAttempts() != 1 ||
		failed.GetRetryTime() == nil {
		t.Errorf("failed: %v", failed)
	}
	later := c.call(connectJSON, "Batch.Execute",
		execute(operation("", receive), operation("", pay("p", "u:a", "world", "5"))))
	if later.Reason(t) != "MESSAGE_LATER" || later.State("retry_time") == "" {
		t.Errorf("before retry_time: %s %s", later.Code, later.Message)
	}
	c.due("m1")
	well := execute(operation("", receive), operation("", pay("p", "u:a", "world", "5")))
	if got, _ := c.executed(well); got[0].(*inboxv1.ReceiveResponse).GetMessage().GetAttempts() != 2 {
		t.Errorf("%v", got[0])
	}
	again := execute(operation("", receive), operation("", pay("another", "u:a", "world", "5")))
	a := c.call(connectJSON, "Batch.Execute", again, "Idempotency-Key", "again")
	if a.Reason(t) != "MESSAGE_DUPLICATE" || a.Code != "already_exists" || a.State("first_request_id") == "" ||
		a.State("operation") != "0" {
		t.Errorf("repeat: %s %s", a.Code, a.Message)
	}
	receive.Delivery = deliveryOf("pay 6")
	differing := c.call(connectJSON, "Batch.Execute", execute(operation("", receive)))
	differing.wants(t, "a repeat with other content", "MESSAGE_DIFFERS")
	differing.wantsState(t, map[string]string{"message_state": "succeeded"})
	if b := c.balance("u:a"); b != "90.00" {
		t.Errorf("u:a has %s", b)
	}
	if n := s.Count("select count(*) from commit_keys where key = 'again'"); n != 0 {
		t.Error("a repeat was recorded under its key")
	}
	got := ok(c, "Inbox.GetMessage", &inboxv1.GetMessageRequest{Key: message("m1")},
		new(inboxv1.GetMessageResponse)).GetMessage()
	if string(got.GetContent()) != "pay 5" || got.GetState() != inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED ||
		got.GetResult() != "paid" {
		t.Errorf("%v", got)
	}
}

// due makes a message due now.
func (c *caller) due(id string) {
	c.T.Helper()
	if _, err := c.Pool.Exec(context.Background(),
		"update inbox_messages set retry_at = now() where message_id = $1 and state = 'failed'", id); err != nil {
		c.T.Fatal(err)
	}
}

func TestOfAHundredDeliveriesOneTakesEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	var wg sync.WaitGroup
	var mu sync.Mutex
	told := map[string]int{}
	for i := range 100 {
		wg.Go(func() {
			r := execute(operation("", &inboxv1.ReceiveRequest{Key: message("m"), Delivery: deliveryOf("x")}),
				operation("", pay(fmt.Sprint("n", i), "u:a", "world", "1")))
			a := c.call(connectProto, "Batch.Execute", r)
			mu.Lock()
			defer mu.Unlock()
			if a.Code != "" {
				told[a.Reason(t)]++
				return
			}
			told["ok"]++
		})
	}
	wg.Wait()
	if told["ok"] != 1 || told["MESSAGE_DUPLICATE"] != 99 || c.balance("u:a") != "94.00" {
		t.Errorf("%v, %s", told, c.balance("u:a"))
	}
}

// A Complete may refer to the fence of a Begin in the same Execute.
func TestFencesMayBeReferenced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	got, _ := c.executed(execute(operation("take", &inboxv1.BeginRequest{Key: message("m"), Delivery: deliveryOf("x")}),
		operation("", pay("p", "u:a", "world", "5")),
		operation("", &inboxv1.CompleteRequest{Key: message("m"), Result: "r"}, "fence=take:fence")))
	if m := got[2].(*inboxv1.CompleteResponse).GetMessage(); m.GetState() !=
		inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED {
		t.Errorf("%v", m)
	}
}

func TestMessagesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for i := range 7 {
		d := &inboxv1.Delivery{Topic: fmt.Sprint("t", i%2)}
		key := message(fmt.Sprint("m", i))
		if i == 6 {
			key.ConsumerGroup = "other"
		}
		if i < 4 {
			ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: key, Permanent: true, Delivery: d}, new(inboxv1.FailResponse))
		} else {
			ok(c, "Inbox.Receive", &inboxv1.ReceiveRequest{Key: key, Delivery: d}, new(inboxv1.ReceiveResponse))
		}
	}
	for _, x := range []struct {
		request *inboxv1.ListMessagesRequest
		want    string
	}{
		{&inboxv1.ListMessagesRequest{}, "m6 m5 m4 m3 m2 m1 m0"},
		{&inboxv1.ListMessagesRequest{ConsumerGroup: "billing"}, "m5 m4 m3 m2 m1 m0"},
		{&inboxv1.ListMessagesRequest{Topic: "t1"}, "m5 m3 m1"},
		{&inboxv1.ListMessagesRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD}, "m3 m2 m1 m0"},
		{&inboxv1.ListMessagesRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD, Topic: "t0",
			ConsumerGroup: "billing"},
			"m2 m0"},
		{&inboxv1.ListMessagesRequest{State: inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED}, "m6 m5 m4"},
	} {
		for _, size := range []int32{0, 1, 2, 3} {
			r, token := proto.Clone(x.request).(*inboxv1.ListMessagesRequest), ""
			var ids []string
			for pages := 0; pages < 10; pages++ {
				r.PageSize, r.PageToken = size, token
				res := ok(c, "Inbox.ListMessages", r, new(inboxv1.ListMessagesResponse))
				for _, m := range res.GetMessages() {
					ids = append(ids, m.GetKey().GetMessageId())
				}
				if token = res.GetNextPageToken(); token == "" {
					break
				}
				other := &inboxv1.ListMessagesRequest{ConsumerGroup: "nobody", PageToken: token}
				if a := c.call(connectJSON, "Inbox.ListMessages", other); a.Reason(t) != "PAGE_TOKEN_INVALID" {
					t.Errorf("another list accepts the page token: %s", a.Raw)
				}
			}
			if got := strings.Join(ids, " "); got != x.want {
				t.Errorf("%v in pages of %d: %s, not %s", x.request, size, got, x.want)
			}
		}
	}
	one := ok(c, "Inbox.RequeueMessages",
		&inboxv1.RequeueMessagesRequest{Target: &inboxv1.RequeueMessagesRequest_Filter{Filter: &inboxv1.RequeueFilter{
			ConsumerGroup: "billing", Topic: "t1"}}}, new(inboxv1.RequeueMessagesResponse))
	rest := ok(c, "Inbox.RequeueMessages",
		&inboxv1.RequeueMessagesRequest{Target: &inboxv1.RequeueMessagesRequest_Filter{Filter: &inboxv1.RequeueFilter{
			ConsumerGroup: "billing"}}}, new(inboxv1.RequeueMessagesResponse))
	if one.GetRequeued() != 2 || rest.GetRequeued() != 2 || one.GetMore() || rest.GetMore() {
		t.Errorf("%v, %v", one, rest)
	}
}

func TestDeliveryErrorsNameTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for field, d := range map[string]*inboxv1.Delivery{
		"delivery.contentSha256": {Content: []byte("x"), ContentSha256: make([]byte, 32)},
		"delivery.maxBackoff":    {Backoff: durationpb.New(time.Minute), MaxBackoff: durationpb.New(time.Second)},
		"delivery.maxAttempts":   {MaxAttempts: 1001},
		"delivery.life":          {Life: durationpb.New(time.Second)},
		"delivery.topic":         {Topic: strings.Repeat("t", 257)},
	} {
		a := c.call(connectJSON, "Inbox.Begin", &inboxv1.BeginRequest{Key: message("m"), Delivery: d})
		if a.Reason(t) != "FIELD_INVALID" || !strings.Contains(a.Message, field) {
			t.Errorf("%s: %s %s", field, a.Code, a.Message)
		}
	}
	a := c.call(connectJSON, "Inbox.Fail", &inboxv1.FailRequest{Key: message("m"), Fence: 1, Delivery: deliveryOf("x")})
	if a.Reason(t) != "FIELD_INVALID" || !strings.Contains(a.Message, "delivery") {
		t.Errorf("%s %s", a.Code, a.Message)
	}
}

package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

func saying(content string) *inboxv1.Delivery {
	return &inboxv1.Delivery{Topic: "orders", Content: []byte(content)}
}

// heldFence is the fence of messages that prepare has begun.
const heldFence = 7

func init() {
	furnishers = append(furnishers, func(c *caller, x things, id []string) {
		ok(c, "Inbox.Receive", &inboxv1.ReceiveRequest{Key: message(x.paid), Delivery: saying(secretNote),
			Result: secretNote}, new(inboxv1.ReceiveResponse), id...)
		ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message(x.held), Error: secretNote, Permanent: true},
			new(inboxv1.FailResponse), id...)
	})
	goWell = append(goWell, "Inbox.Receive", "Inbox.Begin", "Inbox.List")
	for name, example := range map[string]func(x things) []proto.Message{
		"Inbox.Receive": func(x things) []proto.Message {
			return all(&inboxv1.ReceiveRequest{Key: message(x.paid)}, &inboxv1.ReceiveRequest{Key: message(x.held)})
		},
		"Inbox.Begin": func(x things) []proto.Message { return all(&inboxv1.BeginRequest{Key: message(x.paid)}) },
		"Inbox.Complete": func(x things) []proto.Message {
			return all(&inboxv1.CompleteRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.Fail": func(x things) []proto.Message {
			return all(&inboxv1.FailRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.Extend": func(x things) []proto.Message {
			return all(&inboxv1.ExtendRequest{Key: message(x.held), Fence: heldFence})
		},
		"Inbox.Requeue": func(x things) []proto.Message {
			return all(&inboxv1.RequeueRequest{Target: &inboxv1.RequeueRequest_Key{Key: message(x.held)}})
		},
		"Inbox.Get": func(x things) []proto.Message { return all(&inboxv1.GetRequest{Key: message(x.paid)}) },
		"Inbox.List": func(things) []proto.Message {
			return all(&inboxv1.ListRequest{}, &inboxv1.ListRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD})
		},
	} {
		examples[name] = example
	}

	preparers = append(preparers, func(c *caller, tag string) {
		for i, kind := range []string{"held-", "failed-", "extend-"} {
			_, err := c.pool.Exec(context.Background(), `insert into inbox_messages (tenant_id, consumer_group, message_id, part, inbox_id, topic, state,
					holder, fence, lease_expires_at, attempts, max_attempts, backoff_ms, max_backoff_ms, received_at, started_at, principal, request_id, last_request_id)
				select (select max(tenant_id) from ledger_accounts where code = 'u:' || $1), 'billing', $2, '', (batch_id << 14) + 16000 + $3, 'orders', 'processing',
					'h', $4, now() + interval '1 hour', 1, 10, 1000, 1000, committed_at, committed_at, 'p', 'r', 'r'
				from commit_batches where commands > 0 order by batch_id desc limit 1`, tag, kind+tag, i, heldFence)
			if err != nil {
				c.t.Fatal(err)
			}
		}
		for _, kind := range []string{"dead-", "requeue-"} {
			ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message(kind + tag), Error: "broken", Permanent: true},
				new(inboxv1.FailResponse))
		}
		ok(c, "Inbox.Receive", &inboxv1.ReceiveRequest{Key: message("done-" + tag)}, new(inboxv1.ReceiveResponse))
	})
	requeue := func(id string) *inboxv1.RequeueRequest {
		return &inboxv1.RequeueRequest{Target: &inboxv1.RequeueRequest_Key{Key: message(id)}}
	}
	for name, x := range map[string]change{
		"Inbox.Receive": {reason: "MESSAGE_DEAD", well: func(tag string) proto.Message {
			return &inboxv1.ReceiveRequest{Key: message("new-" + tag), Delivery: saying("x"), Result: "seen"}
		}, refused: func(tag string) proto.Message { return &inboxv1.ReceiveRequest{Key: message("dead-" + tag)} }},
		"Inbox.Begin": {well: func(tag string) proto.Message {
			return &inboxv1.BeginRequest{Key: message("begin-" + tag), Delivery: saying("x")}
		}},
		"Inbox.Complete": {well: func(tag string) proto.Message {
			return &inboxv1.CompleteRequest{Key: message("held-" + tag), Fence: heldFence, Result: "done"}
		}},
		"Inbox.Fail": {well: func(tag string) proto.Message {
			return &inboxv1.FailRequest{Key: message("failed-" + tag), Fence: heldFence, Error: "no"}
		}},
		"Inbox.Extend": {well: func(tag string) proto.Message {
			return &inboxv1.ExtendRequest{Key: message("extend-" + tag), Fence: heldFence,
				Lease: durationpb.New(time.Minute)}
		}},
		"Inbox.Requeue": {reason: "MESSAGE_NOT_DEAD",
			well:    func(tag string) proto.Message { return requeue("requeue-" + tag) },
			refused: func(tag string) proto.Message { return requeue("done-" + tag) }},
	} {
		changes[name] = x
	}
}

func TestAMessageAndItsEffectCommitTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	receive := &inboxv1.ReceiveRequest{Key: message("m1"), Delivery: saying("pay 5"), Result: "paid"}
	// No operation is recognised by a name of its own: only the message keeps it from happening again.
	refused := execute(operation("", receive), operation("", pay("p", "u:a", "world", "1000")))
	if a := c.call(connectJSON, "Batch.Execute", refused); a.reason(t) != "INSUFFICIENT_FUNDS" ||
		a.state("operation") != "1" {
		t.Errorf("%s %s", a.code, a.message)
	}
	if a := c.call(connectJSON, "Inbox.Get",
		&inboxv1.GetRequest{Key: message("m1")}); a.reason(t) != "MESSAGE_NOT_FOUND" {
		t.Errorf("a refused effect left its message: %s", a.raw)
	}
	failed := ok(c, "Inbox.Fail", &inboxv1.FailRequest{Key: message("m1"), Error: "no money",
		Delivery: saying("pay 5")}, new(inboxv1.FailResponse)).GetMessage()
	if failed.GetState() != inboxv1.MessageState_MESSAGE_STATE_FAILED || failed.GetAttempts() != 1 ||
		failed.GetRetryTime() == nil {
		t.Errorf("failed: %v", failed)
	}
	later := c.call(connectJSON, "Batch.Execute",
		execute(operation("", receive), operation("", pay("p", "u:a", "world", "5"))))
	if later.reason(t) != "MESSAGE_LATER" || later.state("retry_time") == "" {
		t.Errorf("before its wait is over: %s %s", later.code, later.message)
	}
	c.due("m1")
	well := execute(operation("", receive), operation("", pay("p", "u:a", "world", "5")))
	if got, _ := c.executed(well); got[0].(*inboxv1.ReceiveResponse).GetMessage().GetAttempts() != 2 {
		t.Errorf("%v", got[0])
	}
	again := execute(operation("", receive), operation("", pay("another", "u:a", "world", "5")))
	a := c.call(connectJSON, "Batch.Execute", again, "Idempotency-Key", "again")
	if a.reason(t) != "MESSAGE_DUPLICATE" || a.code != "already_exists" || a.state("first_request_id") == "" ||
		a.state("operation") != "0" {
		t.Errorf("a repeat: %s %s", a.code, a.message)
	}
	receive.Delivery = saying("pay 6")
	if a := c.call(connectJSON, "Batch.Execute", execute(operation("", receive))); a.reason(t) != "MESSAGE_DIFFERS" {
		t.Errorf("another content: %s %s", a.code, a.message)
	}
	if b := c.balance("u:a"); b != "90.00" {
		t.Errorf("u:a has %s", b)
	}
	if n := s.count("select count(*) from commit_keys where key = 'again'"); n != 0 {
		t.Error("a repeat was recorded under its key")
	}
	got := ok(c, "Inbox.Get", &inboxv1.GetRequest{Key: message("m1")}, new(inboxv1.GetResponse)).GetMessage()
	if string(got.GetContent()) != "pay 5" || got.GetState() != inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED ||
		got.GetResult() != "paid" {
		t.Errorf("%v", got)
	}
}

// due ends the wait of a message.
func (c *caller) due(id string) {
	c.t.Helper()
	if _, err := c.pool.Exec(context.Background(),
		"update inbox_messages set retry_at = now() where message_id = $1 and state = 'failed'", id); err != nil {
		c.t.Fatal(err)
	}
}

func TestOfAHundredDeliveriesOneTakesEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	var wg sync.WaitGroup
	var mu sync.Mutex
	told := map[string]int{}
	for i := range 100 {
		wg.Go(func() {
			r := execute(operation("", &inboxv1.ReceiveRequest{Key: message("m"), Delivery: saying("x")}),
				operation("", pay(fmt.Sprint("n", i), "u:a", "world", "1")))
			a := c.call(connectProto, "Batch.Execute", r)
			mu.Lock()
			defer mu.Unlock()
			if a.code != "" {
				told[a.reason(t)]++
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

// The failed attempt of a message can be counted in one call, and an attempt of a message be its own reference.
func TestAFenceIsAReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	got, _ := c.executed(execute(operation("take", &inboxv1.BeginRequest{Key: message("m"), Delivery: saying("x")}),
		operation("", pay("p", "u:a", "world", "5")),
		operation("", &inboxv1.CompleteRequest{Key: message("m"), Result: "r"}, "fence=take:fence")))
	if m := got[2].(*inboxv1.CompleteResponse).GetMessage(); m.GetState() != inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED {
		t.Errorf("%v", m)
	}
}

func TestMessagesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
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
		request *inboxv1.ListRequest
		want    string
	}{
		{&inboxv1.ListRequest{}, "m6 m5 m4 m3 m2 m1 m0"},
		{&inboxv1.ListRequest{ConsumerGroup: "billing"}, "m5 m4 m3 m2 m1 m0"},
		{&inboxv1.ListRequest{Topic: "t1"}, "m5 m3 m1"},
		{&inboxv1.ListRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD}, "m3 m2 m1 m0"},
		{&inboxv1.ListRequest{State: inboxv1.MessageState_MESSAGE_STATE_DEAD, Topic: "t0", ConsumerGroup: "billing"},
			"m2 m0"},
		{&inboxv1.ListRequest{State: inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED}, "m6 m5 m4"},
	} {
		for _, size := range []int32{0, 1, 2, 3} {
			r, token := proto.Clone(x.request).(*inboxv1.ListRequest), ""
			var ids []string
			for pages := 0; pages < 10; pages++ {
				r.PageSize, r.PageToken = size, token
				res := ok(c, "Inbox.List", r, new(inboxv1.ListResponse))
				for _, m := range res.GetMessages() {
					ids = append(ids, m.GetKey().GetMessageId())
				}
				if token = res.GetNextPageToken(); token == "" {
					break
				}
				other := &inboxv1.ListRequest{ConsumerGroup: "nobody", PageToken: token}
				if a := c.call(connectJSON, "Inbox.List", other); a.reason(t) != "PAGE_TOKEN_INVALID" {
					t.Errorf("another list takes the token: %s", a.raw)
				}
			}
			if got := strings.Join(ids, " "); got != x.want {
				t.Errorf("%v in pages of %d: %s, not %s", x.request, size, got, x.want)
			}
		}
	}
	one := ok(c, "Inbox.Requeue", &inboxv1.RequeueRequest{Target: &inboxv1.RequeueRequest_Filter{Filter: &inboxv1.RequeueFilter{
		ConsumerGroup: "billing", Topic: "t1"}}}, new(inboxv1.RequeueResponse))
	rest := ok(c, "Inbox.Requeue", &inboxv1.RequeueRequest{Target: &inboxv1.RequeueRequest_Filter{Filter: &inboxv1.RequeueFilter{
		ConsumerGroup: "billing"}}}, new(inboxv1.RequeueResponse))
	if one.GetRequeued() != 2 || rest.GetRequeued() != 2 || one.GetMore() || rest.GetMore() {
		t.Errorf("%v, %v", one, rest)
	}
}

func TestABadDeliveryIsNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	for field, d := range map[string]*inboxv1.Delivery{
		"delivery.content_sha256": {Content: []byte("x"), ContentSha256: make([]byte, 32)},
		"delivery.max_backoff":    {Backoff: durationpb.New(time.Minute), MaxBackoff: durationpb.New(time.Second)},
		"delivery.max_attempts":   {MaxAttempts: 1001},
		"delivery.keep":           {Keep: durationpb.New(time.Second)},
		"delivery.topic":          {Topic: strings.Repeat("t", 257)},
	} {
		a := c.call(connectJSON, "Inbox.Begin", &inboxv1.BeginRequest{Key: message("m"), Delivery: d})
		if a.reason(t) != "FIELD_INVALID" || !strings.Contains(a.message, field) {
			t.Errorf("%s: %s %s", field, a.code, a.message)
		}
	}
	a := c.call(connectJSON, "Inbox.Fail", &inboxv1.FailRequest{Key: message("m"), Fence: 1, Delivery: saying("x")})
	if a.reason(t) != "FIELD_INVALID" || !strings.Contains(a.message, "delivery") {
		t.Errorf("%s %s", a.code, a.message)
	}
}

package rpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func sms(tag string) *notifyv1.SendRequest {
	return &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
		BusinessType: "order.paid", BizNo: "sms-" + tag,
		Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "paid " + tag}}}
}

func mail(tag string) *notifyv1.SendRequest {
	return &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_EMAIL, Recipient: "ada@example.com",
		BusinessType: "order.paid", BizNo: "mail-" + tag,
		Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Subject: "Paid", Text: "paid " + tag,
			Headers: manyNames}}}
}

func requeueNotice(id int64) *notifyv1.RequeueMessagesRequest {
	return &notifyv1.RequeueMessagesRequest{Target: &notifyv1.RequeueMessagesRequest_MessageId{MessageId: id}}
}

func reportNotice(id int64) *notifyv1.ReportDeliveryRequest {
	return &notifyv1.ReportDeliveryRequest{Target: &notifyv1.ReportDeliveryRequest_MessageId{MessageId: id},
		Delivered: true}
}

// notice returns a placeholder for the id of a message. noticeID replaces it by the actual id.
func notice(kind, tag string) int64 { return 1<<60 + int64(crc32.ChecksumIEEE([]byte(kind+tag))) }

func (s *site) noticeID(id int64) int64 {
	if known, found := s.fences.Load(fmt.Sprint("notice ", id)); found {
		return known.(int64)
	}
	return id
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		for i, r := range []*notifyv1.SendRequest{sms(x.paid), mail(x.held)} {
			r.BusinessType = secretNote
			m := ok(c, "Notify.Send", r, new(notifyv1.SendResponse), id...).GetMessage()
			c.fences.Store(fmt.Sprint("notice ", notice([]string{"paid", "held"}[i], x.paid)), m.GetId())
		}
		c.alter(`update notify_queue set state = 'dead', due_at = null, failure_code = $1 where channel = 'email'`,
			secretNote)
	})
	goWell = append(goWell, "Notify.Send", "Notify.SendBatch", "Notify.ListMessages", "Notify.ListDeadLetters")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Notify.Send": func(x resources) []proto.Message { return all(sms(x.paid)) },
		"Notify.SendBatch": func(x resources) []proto.Message {
			return all(&notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{sms(x.paid), mail(x.held)}})
		},
		"Notify.CancelMessage": func(x resources) []proto.Message {
			return all(&notifyv1.CancelMessageRequest{MessageId: notice("paid", x.paid)})
		},
		"Notify.RequeueMessages": func(x resources) []proto.Message {
			return all(requeueNotice(notice("held",
				x.paid)))
		},
		"Notify.ReportDelivery": func(x resources) []proto.Message { return all(reportNotice(notice("paid", x.paid))) },
		"Notify.GetMessage": func(x resources) []proto.Message {
			return all(&notifyv1.GetMessageRequest{Target: &notifyv1.
				GetMessageRequest_MessageBizNo{MessageBizNo: "sms-" + x.paid}})
		},
		"Notify.ListMessages": func(resources) []proto.Message {
			return all(&notifyv1.ListMessagesRequest{},
				&notifyv1.ListMessagesRequest{State: notifyv1.MessageState_MESSAGE_STATE_DEAD},
				&notifyv1.ListMessagesRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678"})
		},
		"Notify.ListDeadLetters": func(resources) []proto.Message { return all(&notifyv1.ListDeadLettersRequest{}) },
	} {
		examples[name] = example
	}

	preparers["Notify"] = func(c *caller, tag string) {
		ok(c, "Notify.PutTemplate", putTemplate("gone-"+tag, "x"), new(notifyv1.PutTemplateResponse))
		ok(c, "Notify.SendCode", sendCode("held-"+tag), new(notifyv1.SendCodeResponse))
		for _, kind := range []string{"cancel-", "requeue-", "report-", "sent-"} {
			r := sms(kind + tag)
			m := ok(c, "Notify.Send", r, new(notifyv1.SendResponse)).GetMessage()
			c.fences.Store(fmt.Sprint("notice ", notice(kind, tag)), m.GetId())
			switch kind {
			case "requeue-":
				c.alter(`update notify_queue set state = 'dead', due_at = null, failure_code = 'refused'
					where message_id = $1`, m.GetId())
			case "report-", "sent-":
				c.alter(`with gone as (delete from notify_queue where message_id = $1 returning *)
					insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, at,
					instance)
					select tenant_id, message_id, month, 1, 'sent', 1, 'file', now(), 'test' from gone`, m.GetId())
			}
		}
	}
	for name, x := range map[string]change{
		"Notify.Send": {well: func(tag string) proto.Message { return sms("new-" + tag) }},
		"Notify.SendBatch": {well: func(tag string) proto.Message {
			return &notifyv1.SendBatchRequest{AllOrNothing: true,
				Items: []*notifyv1.SendRequest{sms("one-" + tag), mail("two-" + tag)}}
		}},
		"Notify.CancelMessage": {reason: "NOTIFY_NOT_CANCELLABLE", well: func(tag string) proto.Message {
			return &notifyv1.CancelMessageRequest{MessageId: notice("cancel-", tag)}
		}, refused: func(tag string) proto.Message {
			return &notifyv1.CancelMessageRequest{MessageId: notice("sent-", tag)}
		}},
		"Notify.RequeueMessages": {reason: "NOTIFY_NOT_PARKED",
			well:    func(tag string) proto.Message { return requeueNotice(notice("requeue-", tag)) },
			refused: func(tag string) proto.Message { return requeueNotice(notice("sent-", tag)) }},
		"Notify.ReportDelivery": {well: func(tag string) proto.Message { return reportNotice(notice("report-", tag)) }},
	} {
		changes[name] = x
	}
}

// alter changes rows without the server.
func (s *site) alter(query string, args ...any) {
	s.T.Helper()
	if _, err := s.Pool.Exec(context.Background(), query, args...); err != nil {
		s.T.Fatal(err)
	}
}

func TestMessageCommitsWithItsCause(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	limit(t, s, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerTenant, Window: notify.MaxWindow,
		MaxMessages: 8})
	before := s.Count("select count(*) from notify_messages")
	refused := execute(operation("", sms("x")), operation("", mail("x")),
		operation("", pay("no", "u:a", "world", "1000")))
	for range 20 { // more than the limit: rolled-back messages do not count
		if a := c.call(connectJSON, "Batch.Execute", refused); a.Reason(t) != "INSUFFICIENT_FUNDS" {
			t.Fatalf("%s %s", a.Code, a.Message)
		}
	}
	if n := s.Count("select count(*) from notify_messages"); n != before {
		t.Errorf("%d messages of rolled-back calls", n-before)
	}
	well := execute(operation("", pay("yes", "u:a", "world", "5")), operation("", sms("x")), operation("", mail("x")))
	for i := range 3 {
		if a := c.call(connectJSON, "Batch.Execute", well, "X-Request-ID", fmt.Sprint("run-", i)); a.Code != "" {
			t.Fatalf("%s %s", a.Code, a.Message)
		}
	}
	if n := s.Count("select count(*) from notify_queue q join notify_contents c using (tenant_id, message_id) " +
		"where c.recipient in ('+8613812345678', 'ada@example.com') and exists (select from notify_messages m " +
		"where m.message_id = q.message_id and m.request_id = 'run-0')"); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	if n := s.Count("select count(*) from audit.requests where request_id = 'run-0'"); n != 3 {
		t.Errorf("the call has %d effects, want 3", n)
	}
}

// The content of a message may refer to results of earlier operations, such as a transfer's number or a balance.
func TestMessageMayReferToEarlierOperations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	report := operation("", &notifyv1.ReportDeliveryRequest{Delivered: true},
		"message_id=sent:message.id")
	sent := operation("sent", sms("r"))
	if a := c.call(connectJSON, "Batch.Execute", execute(sent, report)); a.Reason(t) != "NOTIFY_BEING_SENT" {
		t.Errorf("a report on a message of the same Execute: %s %s", a.Code, a.Message)
	}
	c.well(t, "Batch.Execute", execute(sent))
	if a := c.call(connectJSON, "Batch.Execute", execute(sent, report)); a.Code != "" {
		t.Errorf("a report on an earlier message: %s %s", a.Code, a.Message)
	}
	got := ok(c, "Notify.GetMessage",
		&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageBizNo{MessageBizNo: "sms-r"}},
		new(notifyv1.GetMessageResponse))
	if got.GetMessage().GetState() != notifyv1.MessageState_MESSAGE_STATE_DELIVERED || len(got.GetEvents()) != 1 {
		t.Errorf("%v", got)
	}
}

func limit(t *testing.T, s *site, l notify.Limit) {
	t.Helper()
	var tenant int32
	if err := s.Pool.QueryRow(t.Context(), "select max(tenant_id) from access_tenants").Scan(&tenant); err != nil {
		t.Fatal(err)
	}
	if _, err := notify.PutLimit(t.Context(), pgtest.Pool(t, s.DB.AdminDSN), tenant, l); err != nil {
		t.Fatal(err)
	}
}

// Every change of a message records the principal and the request id.
func TestChangesOfMessagesAreAttributed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	for kind, call := range map[string]func(id string){
		"cancelled": func(id string) {
			ok(c, "Notify.CancelMessage", &notifyv1.CancelMessageRequest{MessageId: notice("cancel-", "a")},
				new(notifyv1.CancelMessageResponse), "X-Request-ID", id)
		},
		"requeued": func(id string) {
			ok(c, "Notify.RequeueMessages", requeueNotice(notice("requeue-", "a")),
				new(notifyv1.RequeueMessagesResponse), "X-Request-ID", id)
		},
		"delivered": func(id string) {
			ok(c, "Notify.ReportDelivery", reportNotice(notice("report-", "a")), new(notifyv1.ReportDeliveryResponse),
				"X-Request-ID", id)
		},
	} {
		call("who-" + kind)
		var did string
		if err := s.Pool.QueryRow(t.Context(), `select string_agg(format('%s %s %s %s', r.what, r.detail, r.principal,
			e.kind), '; ') from audit.requests r
			join audit.notification_events e on e.message_id = r.id and e.request_id = r.request_id
			where r.request_id = $1`, "who-"+kind).Scan(&did); err != nil {
			t.Fatal(kind, err)
		}
		if did != "notification changed "+kind+" boss "+kind {
			t.Errorf("%s: %s", kind, did)
		}
	}
	ok(c, "Webhook.UpdateEndpoint", &notifyv1.UpdateEndpointRequest{Name: "hook-a",
		Url: proto.String("https://eve.example.com")}, new(notifyv1.UpdateEndpointResponse), "X-Request-ID",
		"who-moved")
	if n := s.Count(`select count(*) from audit.requests where request_id = 'who-moved' and what = 'endpoint'
		and name = 'hook-a' and principal = 'boss' and at > now() - interval '1 min'`); n != 1 {
		t.Error("the change of an endpoint is not attributed")
	}
	got := ok(c, "Notify.GetMessage",
		&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageBizNo{MessageBizNo: "sms-cancel-a"}},
		new(notifyv1.GetMessageResponse)).GetEvents()
	if len(got) != 1 || got[0].GetPrincipal() != "boss" || got[0].GetRequestId() != "who-cancelled" {
		t.Errorf("%v", got)
	}
}

func TestContentIsVisibleToAdminsOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.DB.SkipChecks() // the test deletes contents early
	boss, clerk := &caller{s, s.Key("mine", "boss", access.Admin)}, &caller{s, s.Key("mine", "clerk", access.Write)}
	r := sms("secret")
	r.GetContent().Text = "the eagle has landed"
	sent := ok(clerk, "Notify.Send", r, new(notifyv1.SendResponse)).GetMessage()
	with := &notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageId{MessageId: sent.GetId()},
		WithContent: true}
	if a := clerk.call(connectJSON, "Notify.GetMessage", with); a.Reason(t) != "PERMISSION_DENIED" {
		t.Errorf("a write key can read the content: %s", a.Raw)
	}
	if a := boss.call(connectJSON, "Notify.GetMessage", with); a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the content may be cached: %v", a.Header)
	}
	got := ok(boss, "Notify.GetMessage", with, new(notifyv1.GetMessageResponse))
	if got.GetRecipient() != "+8613812345678" || got.GetContent().GetText() != "the eagle has landed" ||
		!proto.Equal(got.GetMessage(), sent) {
		t.Errorf("%v", got)
	}
	r.GetContent().Text = "the eagle crashed"
	clerk.call(connectJSON, "Notify.Send", r).wants(t, "another text", "NOTIFY_BIZ_NO_EXISTS_DIFFERENT")
	r.Recipient = "nobody 13812345678"
	clerk.call(connectJSON, "Notify.Send", r).wants(t, "no number", "FIELD_INVALID")
	kept, err := json.Marshal(s.dump("mine"))
	if err != nil {
		t.Fatal(err)
	}
	for _, told := range []string{"3812345678", "eagle"} {
		if strings.Contains(s.Log.String(), told) {
			t.Errorf("%q is in the log", told)
		}
		// Only notify_contents has it, whose partitions are dropped. The search is for hex, because the column is
		// bytea.
		s.alter("delete from notify_contents")
		if dump := fmt.Sprint(s.dump("mine")); strings.Contains(dump, told) ||
			strings.Contains(dump, fmt.Sprintf("%x", told)) {
			t.Errorf("%q is in a permanent table", told)
		}
	}
	if !strings.Contains(string(kept), "3812345678") {
		t.Error("the search finds nothing before the deletion either")
	}
	if got := ok(boss, "Notify.GetMessage", with, new(notifyv1.GetMessageResponse)); got.GetRecipient() != "" ||
		got.GetContent() != nil || got.GetMessage().GetRecipientHint() != "+86138****5678" {
		t.Errorf("after the deletion: %v", got)
	}
}

func TestTimesOfMessagesAreNotCut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	r := sms("1")
	r.NotBefore = &timestamppb.Timestamp{Seconds: time.Now().Unix(), Nanos: 100}
	if a := c.call(connectJSON, "Notify.Send", r); a.Reason(t) != "FIELD_INVALID" ||
		!strings.Contains(a.Message, "notBefore: must be in whole microseconds") {
		t.Errorf("%s %s", a.Reason(t), a.Message)
	}
}

func TestSendBatchItemsFailIndependently(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	bad, empty := sms("bad"), mail("empty")
	bad.Recipient, empty.GetContent().Subject = "12", ""
	unset := sms("no channel")
	unset.Channel = notifyv1.Channel_CHANNEL_UNSPECIFIED
	r := &notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{sms("1"), bad, mail("2"), empty, sms("1"), unset}}
	var first *notifyv1.SendBatchResponse
	for i := range 2 {
		res := ok(c, "Notify.SendBatch", r, new(notifyv1.SendBatchResponse), "Idempotency-Key", "k")
		x := res.GetResults()
		if x[0].GetMessageId() == 0 || x[2].GetMessageId() == 0 || x[4].GetMessageId() != x[0].GetMessageId() ||
			!x[4].GetExisted() || x[0].GetExisted() ||
			x[1].GetError().GetReason() != "FIELD_INVALID" || x[3].GetError().GetReason() != "FIELD_INVALID" ||
			!strings.HasPrefix(x[5].GetError().GetMessage(), "channel: ") {
			t.Errorf("run %d: %v", i, res)
		}
		if first == nil {
			first = res
		} else if first.GetResults()[0].GetMessageId() != x[0].GetMessageId() {
			t.Errorf("run %d: another message", i)
		}
	}
	r.AllOrNothing = true
	if a := c.call(connectJSON, "Notify.SendBatch", r); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("all or nothing: %s %s", a.Code, a.Message)
	}
	if n := s.Count("select count(*) from notify_messages"); n != 2 {
		t.Errorf("%d messages, not two", n)
	}
}

package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

const (
	byEmail = notifyv1.Channel_CHANNEL_EMAIL
	bySMS   = notifyv1.Channel_CHANNEL_SMS
)

func putTemplate(name, text string) *notifyv1.PutTemplateRequest {
	return &notifyv1.PutTemplateRequest{Channel: bySMS, Name: name, Locale: "en",
		Definition: &notifyv1.TemplateDefinition{Text: text,
			Variables: []*notifyv1.Variable{{Name: "name", Kind: notifyv1.VariableKind_VARIABLE_KIND_STRING},
				{Name: "total", Kind: notifyv1.VariableKind_VARIABLE_KIND_AMOUNT, Optional: true}},
			ProviderTemplates: map[string]*notifyv1.ProviderTemplate{"one": {Id: "1"},
				"two": {Id: "2", Params: []*notifyv1.Param{{Name: "n", Value: "{{.name}}"}}}, "three": {Id: "3"}},
			Priority: notifyv1.Priority_PRIORITY_LOW, OnUnknown: notifyv1.OnUnknown_ON_UNKNOWN_RESEND,
			MaxAttempts: 3}}
}

func use(name string, values map[string]any) *notifyv1.TemplateUse {
	v, err := structpb.NewStruct(values)
	if err != nil {
		panic(err)
	}
	return &notifyv1.TemplateUse{Name: name, Locale: "en-GB", Variables: v}
}

func sendCode(tag string) *notifyv1.SendCodeRequest {
	return &notifyv1.SendCodeRequest{Channel: byEmail, Recipient: tag + "@example.com", Type: "login"}
}

func verifyCode(tag, digits string) *notifyv1.VerifyCodeRequest {
	return &notifyv1.VerifyCodeRequest{Channel: byEmail, Recipient: tag + "@example.com", Type: "login", Code: digits}
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ok(c, "Notify.PutTemplate", putTemplate(x.paid, secretNote), new(notifyv1.PutTemplateResponse), id...)
		ok(c, "Notify.PutTemplate", putTemplate(secretNote, secretNote), new(notifyv1.PutTemplateResponse), id...)
		ok(c, "Notify.SendCode", sendCode(x.paid), new(notifyv1.SendCodeResponse), id...)
	})
	goWell = append(goWell, "Notify.PutTemplate", "Notify.ListTemplates", "Notify.SendCode", "Notify.VerifyCode")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Notify.PutTemplate": func(x resources) []proto.Message { return all(putTemplate(x.paid, "other")) },
		"Notify.DeleteTemplate": func(x resources) []proto.Message {
			return all(&notifyv1.DeleteTemplateRequest{Channel: bySMS, Name: x.paid})
		},
		"Notify.GetTemplate": func(x resources) []proto.Message {
			return all(&notifyv1.GetTemplateRequest{Channel: bySMS, Name: x.paid},
				&notifyv1.GetTemplateRequest{Channel: bySMS, Name: x.paid, Version: 1})
		},
		"Notify.ListTemplates": func(resources) []proto.Message { return all(&notifyv1.ListTemplatesRequest{}) },
		"Notify.PreviewTemplate": func(x resources) []proto.Message {
			return all(&notifyv1.PreviewTemplateRequest{Channel: bySMS,
				Template: use(x.paid, map[string]any{"name": "Ada"})})
		},
		"Notify.SendCode":   func(x resources) []proto.Message { return all(sendCode(x.paid + "-walk")) },
		"Notify.VerifyCode": func(x resources) []proto.Message { return all(verifyCode(x.paid, "000000")) },
	} {
		examples[name] = example
	}
	for name, x := range map[string]change{
		"Notify.PutTemplate": {well: func(tag string) proto.Message { return putTemplate("new-"+tag, "x") }},
		"Notify.DeleteTemplate": {well: func(tag string) proto.Message {
			return &notifyv1.DeleteTemplateRequest{Channel: bySMS, Name: "gone-" + tag}
		}},
		"Notify.SendCode":   {well: func(tag string) proto.Message { return sendCode(tag) }},
		"Notify.VerifyCode": {well: func(tag string) proto.Message { return verifyCode("held-"+tag, "12") }},
	} {
		changes[name] = x
	}
}

// mailedCode returns the code in the last message to a tag's address.
func (s *site) mailedCode(tag string) (digits string) {
	s.T.Helper()
	var tenant int32
	var id int64
	var kept []byte
	err := s.Pool.QueryRow(context.Background(), `select tenant_id, message_id, content from notify_contents
		where recipient = $1 order by message_id desc limit 1`, tag+"@example.com").Scan(&tenant, &id, &kept)
	root, failed := servertest.Secret.Root(context.Background(), s.Pool)
	if failed != nil {
		s.T.Fatal(failed)
	}
	content, unread := send.ReadContent(root, tenant, id, kept)
	digits, _, _ = strings.Cut(content.Text, " ")
	if err != nil || unread != nil || len(digits) < 4 {
		s.T.Fatal(digits, err, unread)
	}
	return digits
}

func otherThan(digits string) string {
	if digits[0] == '9' {
		return "0" + digits[1:]
	}
	return string(digits[0]+1) + digits[1:]
}

func TestVerifyCodeGuardsAnExecute(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	ok(c, "Notify.SendCode", sendCode("ada"), new(notifyv1.SendCodeResponse))
	code := s.mailedCode("ada")
	demand := func(digits string) *notifyv1.VerifyCodeRequest {
		v := verifyCode("ada", digits)
		v.Required = true
		return v
	}
	run := func(digits, bizNo, amount string) string {
		a := c.call(connectJSON, "Batch.Execute",
			execute(operation("", demand(digits)), operation("", pay(bizNo, "u:a", "world", amount))))
		if a.Code == "" {
			return ""
		}
		return a.Reason(t)
	}
	for _, step := range []struct{ digits, bizNo, amount, reason string }{
		{otherThan(code), "one", "1", "CODE_WRONG"}, {code, "two", "1000", "INSUFFICIENT_FUNDS"}, {otherThan(code),
			"two", "1000", "CODE_WRONG"},
		{code, "three", "1", ""}, {code, "four", "1", "CODE_WRONG"},
	} {
		if got := run(step.digits, step.bizNo, step.amount); got != step.reason {
			t.Errorf("%s: %s, want %s", step.bizNo, got, step.reason)
		}
	}
	if n := s.Count("select count(*) from ledger_transfers where biz_no in ('one', 'two', 'three', 'four')"); n != 1 {
		t.Errorf("%d transfers, not one", n)
	}
	if n := s.Count("select tries from notify_codes where recipient_hint = 'a***@example.com' " +
		"and type <> '*'"); n != 3 {
		t.Errorf("%d tries were counted, not three", n)
	}
	c.call(connectJSON, "Notify.VerifyCode", demand(otherThan(code)), tokenHeader, c.plain()).wants(t, "with a token",
		"CODE_WRONG")
	if n := s.Count("select tries from notify_codes where recipient_hint = 'a***@example.com' " +
		"and type <> '*'"); n != 4 {
		t.Errorf("%d tries were counted, not four", n)
	}
	dry := execute(operation("", demand(code)))
	dry.DryRun = true
	if a := c.call(connectJSON, "Batch.Execute", dry); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("a dry run of VerifyCode: %s %s", a.Code, a.Message)
	}
	// Without required, a wrong code is a response. Its count survives the failure of another operation.
	ok(c, "Notify.SendCode", sendCode("bob"), new(notifyv1.SendCodeResponse))
	stale := pay("no", "u:a", "world", "1")
	stale.Conditions = []*ledgerv1.Condition{{Account: ref("u:a", "COIN"), Version: proto.Int64(77)}}
	for reason, beside := range map[string]*ledgerv1.TransferRequest{
		"INSUFFICIENT_FUNDS": pay("no", "u:a", "world", "1000"), "STALE_VERSION": stale, "ACCOUNT_NOT_FOUND": pay("no",
			"u:a", "nobody", "1"),
	} {
		a := c.call(connectJSON, "Batch.Execute",
			execute(operation("", verifyCode("bob", otherThan(s.mailedCode("bob")))), operation("", beside)))
		if a.Reason(t) != reason {
			t.Error(a.Code, a.Message)
		}
	}
	got := ok(c, "Batch.Execute", execute(operation("", verifyCode("bob", otherThan(s.mailedCode("bob"))))),
		new(batchv1.ExecuteResponse))
	answer := new(notifyv1.VerifyCodeResponse)
	if err := got.GetResults()[0].GetResponse().UnmarshalTo(answer); err != nil || answer.GetValid() ||
		answer.GetTriesLeft() != 1 {
		t.Error(answer, err)
	}
}

func TestReplayOfSendCodeSendsNoCode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	first := c.call(connectJSON, "Notify.SendCode", sendCode("ada"), "Idempotency-Key", "k")
	again := c.call(connectJSON, "Notify.SendCode", sendCode("ada"), "Idempotency-Key", "k")
	if first.Code != "" || string(first.Raw) != string(again.Raw) || !again.Replayed() {
		t.Errorf("%s %s", first.Raw, again.Raw)
	}
	if a := c.call(connectJSON, "Notify.SendCode", sendCode("ada")); a.Reason(t) != "CODE_TOO_SOON" ||
		a.Code != "resource_exhausted" {
		t.Error(a.Code, a.Message)
	}
	code := s.mailedCode("ada")
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	mailed := ok(boss, "Notify.ListMessages", &notifyv1.ListMessagesRequest{},
		new(notifyv1.ListMessagesResponse)).GetMessages()[0]
	if got := ok(boss, "Notify.GetMessage",
		&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageId{MessageId: mailed.GetId()},
			WithContent: true},
		new(notifyv1.GetMessageResponse)); got.GetRecipient() != "ada@example.com" || got.GetContent() != nil {
		t.Errorf("an admin can read the code: %v", got)
	}
	right := c.call(connectJSON, "Notify.VerifyCode", verifyCode("ada", code), "Idempotency-Key", "v")
	if again := c.call(connectJSON, "Notify.VerifyCode", verifyCode("ada", code), "Idempotency-Key",
		"v"); string(again.Raw) != string(right.Raw) || !strings.Contains(string(right.Raw), `"valid":true`) {
		t.Errorf("%s %s", right.Raw, again.Raw)
	}
	if a := c.call(connectJSON, "Notify.VerifyCode", verifyCode("ada", code)); strings.Contains(string(a.Raw), "true") {
		t.Errorf("a code is valid twice: %s", a.Raw)
	}
	for _, line := range strings.Split(s.Log.String(), "\n") {
		if strings.Contains(line, code) || strings.Contains(line, "ada@example.com") {
			t.Errorf("the log has the code or the address: %s", line)
		}
	}
	if a := c.call(connectJSON, "Notify.SendCode", sendCode("not an address")); a.Reason(t) != "FIELD_INVALID" ||
		strings.Contains(a.Message, "not an address") {
		t.Error(a.Code, a.Message)
	}
}

func TestSendRendersATemplate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(c, "Notify.PutTemplate", putTemplate("paid", "{{.name}} paid{{if .total}} {{.total}}{{end}}."),
		new(notifyv1.PutTemplateResponse))
	request := func(name string, values map[string]any) *notifyv1.SendRequest {
		return &notifyv1.SendRequest{Channel: bySMS, Recipient: "+8613812345678",
			Says: &notifyv1.SendRequest_Template{Template: use(name, values)}}
	}
	ada := map[string]any{"name": "Ada", "total": map[string]any{"amount": "1234.50", "asset": "CNY"}}
	sent := ok(c, "Notify.Send", request("paid", ada), new(notifyv1.SendResponse)).GetMessage()
	if sent.GetTemplate() != "paid@1" || sent.GetLocale() != "en" ||
		sent.GetPriority() != notifyv1.Priority_PRIORITY_LOW || sent.GetMaxAttempts() != 3 ||
		sent.GetOnUnknown() != notifyv1.OnUnknown_ON_UNKNOWN_RESEND {
		t.Errorf("%v", sent)
	}
	got := ok(c, "Notify.GetMessage",
		&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageId{MessageId: sent.GetId()},
			WithContent: true},
		new(notifyv1.GetMessageResponse))
	if got.GetContent().GetText() != "Ada paid 1,234.50\u00a0CNY." {
		t.Errorf("%v", got.GetContent())
	}
	ok(c, "Notify.PutTemplate", putTemplate("paid", "changed {{.name}}{{.total}}"), new(notifyv1.PutTemplateResponse))
	if again := ok(c, "Notify.Send", request("paid", ada), new(notifyv1.SendResponse)); !again.GetExisted() ||
		again.GetMessage().GetId() != sent.GetId() {
		t.Errorf("a changed template causes a second message for the same order: %v", again)
	}
	own := request("paid", map[string]any{"name": "Bob"})
	own.Priority, own.MaxAttempts, own.OnUnknown = notifyv1.Priority_PRIORITY_HIGH, 7,
		notifyv1.OnUnknown_ON_UNKNOWN_NEVER
	if m := ok(c, "Notify.Send", own, new(notifyv1.SendResponse)).GetMessage(); m.GetPriority() != own.Priority ||
		m.GetMaxAttempts() != 7 || m.GetOnUnknown() != own.OnUnknown || m.GetTemplate() != "paid@2" {
		t.Errorf("the request does not override the template: %v", m)
	}
	before := s.Count("select count(*) from notify_messages")
	for _, x := range []struct {
		r      *notifyv1.SendRequest
		reason string
	}{
		{request("none", ada), "TEMPLATE_NOT_FOUND"}, {request("", ada),
			"FIELD_INVALID"}, {request("paid", map[string]any{"nmae": "Ada", "total": "x"}),
			"TEMPLATE_VARIABLES_INVALID"},
		{&notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_WEBHOOK, Recipient: "e",
			Says: &notifyv1.SendRequest_Template{Template: use("paid", ada)}}, "TEMPLATE_NOT_FOUND"},
	} {
		if a := c.call(connectJSON, "Notify.Send", x.r); a.Reason(t) != x.reason {
			t.Errorf("%s %s, not %s", a.Code, a.Message, x.reason)
		}
	}
	together := &notifyv1.SendBatchRequest{AllOrNothing: true,
		Items: []*notifyv1.SendRequest{request("paid", map[string]any{"name": "Eve"}), request("paid", nil)}}
	if a := c.call(connectJSON, "Notify.SendBatch", together); a.Reason(t) != "TEMPLATE_VARIABLES_INVALID" {
		t.Error(a.Code, a.Message)
	}
	if n := s.Count("select count(*) from notify_messages"); n != before {
		t.Errorf("%d messages of requests that were refused", n-before)
	}
	together.AllOrNothing = false
	each := ok(c, "Notify.SendBatch", together, new(notifyv1.SendBatchResponse)).GetResults()
	if each[0].GetMessageId() == 0 || each[1].GetError().GetReason() != "TEMPLATE_VARIABLES_INVALID" {
		t.Errorf("%v", each)
	}
	bad := putTemplate("bad", "{{.nmae}}")
	bad.Definition.Subject = "x"
	a := c.call(connectJSON, "Notify.PutTemplate", bad)
	if a.Reason(t) != "FIELD_INVALID" || !strings.Contains(fmt.Sprint(a.Message, string(a.Raw)), "definition.subject") {
		t.Errorf("%s %s", a.Message, a.Raw)
	}
}

// Request keys of calls with personal data record keyed fingerprints.
func TestRecordedFingerprintsOfPersonalDataAreKeyed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(c, "Notify.SendCode", sendCode("ada"), new(notifyv1.SendCodeResponse), "Idempotency-Key", "a")
	ok(c, "Notify.VerifyCode", verifyCode("ada", "12"), new(notifyv1.VerifyCodeResponse), "Idempotency-Key", "b")
	ok(c, "Notify.SendBatch", &notifyv1.SendBatchRequest{Items: []*notifyv1.SendRequest{sms("1")}},
		new(notifyv1.SendBatchResponse), "Idempotency-Key", "c")
	c.executed(execute(operation("", sms("2"))), "Idempotency-Key", "d")
	if n := s.Count("select count(*) from commit_keys where get_byte(fingerprint, 0) = 2"); n != 4 {
		t.Errorf("%d of 4 are", n)
	}
}

// Variables of a template may refer to results of earlier operations: amounts, numbers and times. The template itself
// may be made by an earlier operation.
func TestTemplateVariablesMayBeReferences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	put := putTemplate("left", "{{.name}} has {{.total}} left")
	refused := execute(operation("", put), operation("", pay("no", "u:a", "world", "1000")))
	if a := c.call(connectJSON, "Batch.Execute", refused); a.Reason(t) != "INSUFFICIENT_FUNDS" {
		t.Fatal(a.Code, a.Message)
	}
	told := func(name string, values map[string]any) *notifyv1.SendRequest {
		return &notifyv1.SendRequest{Channel: bySMS, Recipient: "+8613812345678",
			Says: &notifyv1.SendRequest_Template{Template: use(name, values)}}
	}
	left := operation("told", told("left", map[string]any{"name": "Ada", "total": map[string]any{"asset": "COIN"}}),
		"template.variables.total.amount=pay:transfer.entries[0].balance_after")
	if a := c.call(connectJSON, "Batch.Execute",
		execute(operation("pay", pay("p1", "u:a", "world", "1")), left)); a.Reason(t) != "TEMPLATE_NOT_FOUND" {
		t.Errorf("a template of what was refused: %s %s", a.Code, a.Message)
	}
	says := func(r *notifyv1.SendResponse) string {
		t.Helper()
		return ok(c, "Notify.GetMessage",
			&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageId{MessageId: r.GetMessage().
				GetId()}, WithContent: true},
			new(notifyv1.GetMessageResponse)).GetContent().GetText()
	}
	whole := execute(operation("pay", pay("p1", "u:a", "world", "1")), operation("put", put), left)
	got, _ := c.executed(whole)
	rest, sent := got[0].(*ledgerv1.TransferResponse).GetTransfer().GetEntries()[0].GetBalanceAfter(),
		got[2].(*notifyv1.SendResponse)
	if text := says(sent); text != "Ada has "+rest+"\u00a0COIN left" || sent.GetMessage().GetTemplate() != "left@1" {
		t.Errorf("%q by %s", text, sent.GetMessage().GetTemplate())
	}
	// A repeat has the same content, and is found by it.
	if again, existed := c.executed(whole); fmt.Sprint(existed) != "[true true true]" ||
		again[2].(*notifyv1.SendResponse).GetMessage().GetId() != sent.GetMessage().GetId() {
		t.Errorf("existed %v", existed)
	}
	// An operation sees only earlier operations.
	changed := putTemplate("left", "{{.name}}")
	got, _ = c.executed(execute(operation("", told("left", map[string]any{"name": "Bob"})), operation("", changed),
		operation("", told("left", map[string]any{"name": "Eve"}))))
	for i, want := range map[int]string{0: "Bob has  left", 2: "Eve"} {
		if text := says(got[i].(*notifyv1.SendResponse)); text != want {
			t.Errorf("%q, not %q", text, want)
		}
	}
	gone := execute(operation("", &notifyv1.DeleteTemplateRequest{Channel: bySMS, Name: "left"}),
		operation("", told("left", map[string]any{"name": "Zoe"})))
	if a := c.call(connectJSON, "Batch.Execute", gone); a.Reason(t) != "TEMPLATE_NOT_FOUND" {
		t.Errorf("%s %s", a.Code, a.Message)
	}
	facts := putTemplate("facts", "{{.no}} {{.id}} {{.at}} {{.again}}")
	facts.Definition.ProviderTemplates = nil
	facts.Definition.Variables = []*notifyv1.Variable{{Name: "no", Kind: notifyv1.VariableKind_VARIABLE_KIND_STRING},
		{Name: "id", Kind: notifyv1.VariableKind_VARIABLE_KIND_INTEGER},
		{Name: "at", Kind: notifyv1.VariableKind_VARIABLE_KIND_TIME, Pattern: "yyyy"},
		{Name: "again", Kind: notifyv1.VariableKind_VARIABLE_KIND_BOOL}}
	ok(c, "Notify.PutTemplate", facts, new(notifyv1.PutTemplateResponse))
	got, _ = c.executed(execute(operation("pay", pay("p2", "u:a", "world", "1")),
		operation("", told("facts", nil), "template.variables.no=pay:transfer.biz_no",
			"template.variables.id=pay:transfer.id", "template.variables.at=pay:transfer.record_time",
			"template.variables.again=pay:existed")))
	paid := got[0].(*ledgerv1.TransferResponse).GetTransfer()
	if text, want := says(got[1].(*notifyv1.SendResponse)),
		fmt.Sprintf("p2 %d %d false", paid.GetId(), paid.GetRecordTime().AsTime().Year()); text != want {
		t.Errorf("%q, not %q", text, want)
	}
	for _, reference := range []string{"template.variables=pay:transfer.id", "template.variables.=pay:transfer.id",
		"template.variables.a[0]=pay:transfer.id",
		"template.variables.a=pay:transfer", "template.variables.a=pay:transfer.metadata",
		"template.name=pay:transfer.biz_no", "content.text=pay:transfer.biz_no"} {
		a := c.call(connectJSON, "Batch.Execute",
			execute(operation("pay", pay("p3", "u:a", "world", "1")), operation("", told("facts", nil), reference)))
		if a.Reason(t) != "FIELD_INVALID" || !strings.Contains(a.Message, "operations[1].references[0]") {
			t.Errorf("%s: %s %s", reference, a.Code, a.Message)
		}
	}
}

func TestWrongCodesAreLimitedPerRecipientAndDay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for i := range code.MaxWrong {
		v := verifyCode("ada", "000000")
		v.Type = fmt.Sprint("type-", i/code.MaxTries)
		if res := ok(c, "Notify.VerifyCode", v, new(notifyv1.VerifyCodeResponse)); res.GetValid() ||
			int(res.GetTriesLeft()) != code.MaxTries-1-i%code.MaxTries {
			t.Errorf("try %d: %v", i, res)
		}
	}
	for name, m := range map[string]proto.Message{"Notify.VerifyCode": verifyCode("ada", "000000"),
		"Notify.SendCode": sendCode("ada")} {
		a := c.call(connectJSON, name, m)
		if a.Reason(t) != "CODE_TRIES_SPENT" || a.State("retry_after_seconds") == "" ||
			!strings.Contains(string(a.Raw), "RetryInfo") {
			t.Errorf("%s: %s", name, a.Raw)
		}
	}
	ok(c, "Notify.SendCode", sendCode("bob"), new(notifyv1.SendCodeResponse))
}

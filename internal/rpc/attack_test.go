package rpc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// hostile is a value that an attacker sends in a string. Names must refuse it if unseen, amounts if noAmount.
type hostile struct {
	what, text       string
	unseen, noAmount bool
}

const (
	rawMark  = "utf8-utf8-utf8" // replaced by rawBytes in the encoded request
	rawBytes = "\xff\xfe\xc0\x80\xed\xa0\x80\xf5\x80\x80\x80\xe2\x28\xa1"
	canary   = "canary8f3a" // valid in most fields, and in no log
)

var hostileTexts = []hostile{
	{"U+202E", "a\u202eb", true, true}, {"U+200B", "a\u200bb", true, true}, {"NUL", "a\x00b", true, true},
	{"U+0007", "a\ab", true, true}, {"CRLF and a header", "a\r\nX-Injected: yes\r\n\r\nb", true, true},
	{"invalid UTF-8", rawMark, true, true},
	{"statements", "'; drop table ledger_accounts; --", false, true}, {"condition", "' or '1'='1", false, true},
	{"template", "{{.}}{{template}}${x}%s", false, true}, {"path", "../../etc/passwd", false, true},
	{"64 KiB", strings.Repeat("x", 64<<10), false, false}, {"canary", canary, false, true},
	{"1e400", "1e400", false, true}, {"NaN", "NaN", false, true}, {"-0", "-0", false, false},
	{"0x10", "0x10", false, true}, {"other digits", "٣", false, true},
	{"39 digits", strings.Repeat("9", 39), false, true},
}

// amountFields are the strings that are numbers.
var amountFields = []string{"amount", "balance_at_least", "min_balance", "max_balance"}

// freeTexts are strings of mutations that may have invisible characters, by message and field, or by the field of all
// messages, with the reason. NUL and invalid UTF-8 are refused there too.
var freeTexts = map[string]string{
	"metadata": "the caller's own data", "inputs": "the caller's own data", "fields": "values of variables",
	"string_value": "values of variables", "error": "text of any program, in lines", "result": "a note of the caller",
	"reason": "prose, in lines", "cause": "prose", "label": "prose", "description": "prose",
	"PutItemRequest.label":  "prose: a label for people, in any script",
	"MessageKey.message_id": "the sender's, who cannot change it", "MessageKey.part": "as message_id",
	"CreatePaymentRequest.payer": "an id of the gateway", "HandleCallbackRequest.headers": "the gateway's",
	"Content.subject": "content: each channel checks what it sends", "Content.headers": "content, as the subject",
	"Content.provider_templates": "content, as the subject", "Content.type": "content, as the subject",
	"Param.name": "content, as the subject", "ProviderTemplate.id": "the provider's",
	"TemplateUse.locale": "a wish, not stored",
	"text":               "content", "html": "content", "ExecuteRequest.lock_keys": "hashed, not stored",
	"VerifyCodeRequest.code": "compared, not stored", "RequeueFilter.consumer_group": "a filter, not stored",
	"RequeueFilter.topic": "a filter, not stored", "DeadFilter.failure_code": "a filter, not stored",
	"RecordedHeader.value": "the caller's own data",
}

// target is the path to a value in a request, by the first element of each list and one pair of each map.
type target struct {
	path []protoreflect.FieldDescriptor
	key  bool // the key of the map, not its value
}

func (x target) last() protoreflect.FieldDescriptor { return x.path[len(x.path)-1] }

// kind returns the kind of the last field; of a map, that of its keys or values.
func (x target) kind() protoreflect.Kind {
	f := x.last()
	switch {
	case f.IsMap() && x.key:
		return f.MapKey().Kind()
	case f.IsMap():
		return f.MapValue().Kind()
	}
	return f.Kind()
}

func (x target) String() string {
	text := string(x.last().Parent().Name() + "." + x.last().Name())
	if x.key {
		text += " (key)"
	}
	return text
}

// targets returns the paths to all values in a message. It does not follow a message that contains itself.
func targets(m protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor) (found []target) {
	for _, f := range above {
		if f.Parent() == m {
			return nil
		}
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		path := append(slices.Clip(above), f)
		inside := f.Message()
		if f.IsMap() {
			found = append(found, target{path, true})
			inside = f.MapValue().Message()
		}
		if inside != nil {
			found = append(found, targets(inside, path)...)
		} else {
			found = append(found, target{path, false})
		}
	}
	return found
}

// set sets the value in a request.
func (x target) set(m protoreflect.Message, v protoreflect.Value) {
	for i, f := range x.path {
		last := i == len(x.path)-1
		switch {
		case f.IsMap() && last && x.key:
			pairs := m.Mutable(f).Map()
			pairs.Set(v.MapKey(), pairs.NewValue())
		case f.IsMap() && last:
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), v)
		case f.IsMap():
			m = m.Mutable(f).Map().Mutable(protoreflect.ValueOfString("k").MapKey()).Message()
		case f.IsList() && last:
			if list := m.Mutable(f).List(); list.Len() > 0 {
				list.Set(0, v)
			} else {
				list.Append(v)
			}
		case f.IsList():
			list := m.Mutable(f).List()
			if list.Len() == 0 {
				list.AppendMutable()
			}
			m = list.Get(0).Message()
		case last:
			m.Set(f, v)
		default:
			m = m.Mutable(f).Message()
		}
	}
}

// inItem matches the error of an item of a list.
var inItem = regexp.MustCompile(`(_INVALID|_NOT_FOUND)\b`)

// namedIn reports whether an error names the field, or the top-level field that contains it.
func (x target) namedIn(a answer) bool {
	text := a.Message
	if bad, found := servertest.Detail(a.Answer, new(errdetails.BadRequest)); found {
		for _, v := range bad.GetFieldViolations() {
			text += " " + v.GetField()
		}
	}
	return strings.Contains(text, string(x.path[0].Name())) || strings.Contains(text, string(x.last().Name()))
}

// storedNothing lists codes of calls that were refused before they stored anything, such as for a name that does not
// exist.
var storedNothing = map[string]bool{"not_found": true, "failed_precondition": true, "aborted": true,
	"resource_exhausted": true} // the last: the wait between codes to one recipient

// extremes returns the extreme values of a kind of numbers.
func extremes(k protoreflect.Kind) []protoreflect.Value {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt32(math.MinInt32), protoreflect.ValueOfInt32(math.MaxInt32)}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt64(math.MinInt64), protoreflect.ValueOfInt64(math.MaxInt64)}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return []protoreflect.Value{protoreflect.ValueOfUint32(math.MaxUint32)}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return []protoreflect.Value{protoreflect.ValueOfUint64(math.MaxUint64)}
	case protoreflect.EnumKind:
		return []protoreflect.Value{protoreflect.ValueOfEnum(math.MinInt32), protoreflect.ValueOfEnum(math.MaxInt32)}
	case protoreflect.DoubleKind:
		return []protoreflect.Value{protoreflect.ValueOfFloat64(math.Inf(1)), protoreflect.ValueOfFloat64(math.NaN()),
			protoreflect.ValueOfFloat64(-math.MaxFloat64)}
	}
	return nil
}

// attack sends hostile requests to one method, and counts them.
type attack struct {
	*caller
	m     protoreflect.MethodDescriptor
	base  proto.Message
	calls int
}

// mostCalls bounds the requests to one method. Only Batch.Execute, which has the fields of all others, would exceed it:
// there some pairs of field and value are left out, but none of the fields or values is.
const mostCalls = 1500

func (x *attack) run() {
	fields := targets(x.m.Input(), nil)
	stride := 1 + len(fields)*len(hostileTexts)/mostCalls
	for i, f := range fields {
		for j, h := range hostileTexts {
			if f.kind() == protoreflect.StringKind && (i+j)%stride == 0 {
				x.string(f, h)
			}
		}
		if f.kind() == protoreflect.BytesKind {
			x.check(f.String(), x.send(f, protoreflect.ValueOfBytes([]byte(canary))))
			x.check(f.String(), x.send(f, protoreflect.ValueOfBytes(bytes.Repeat([]byte{0xff}, 1<<20))))
		}
		for j, v := range extremes(f.kind()) {
			if !f.key && (i+j)%stride == 0 {
				x.check(fmt.Sprint(f, " ", v), x.send(f, v))
			}
		}
	}
}

// renumber gives new resources names of their own, so that a call is not a repeat of the one before.
func renumber(m protoreflect.Message, suffix string) {
	isNew := func(f protoreflect.FieldDescriptor, s string) bool {
		return slices.Contains([]protoreflect.Name{"biz_no", "order_no", "change_no", "reservation_no", "refund_no",
			"codes"}, f.Name()) && newName.MatchString(s)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				if e := v.List().Get(i); f.Message() != nil {
					renumber(e.Message(), suffix)
				} else if f.Kind() == protoreflect.StringKind && isNew(f, e.String()) {
					m.Mutable(f).List().Set(i, protoreflect.ValueOfString(e.String()+suffix))
				}
			}
		case f.Message() != nil:
			renumber(m.Mutable(f).Message(), suffix)
		case f.Kind() == protoreflect.StringKind && isNew(f, v.String()):
			m.Set(f, protoreflect.ValueOfString(v.String()+suffix))
		}
		return true
	})
}

// newName matches names of what an example creates.
var newName = regexp.MustCompile("^(walk|new|sms|refund-walk)")

// send sends the example with one value replaced.
func (x *attack) send(f target, v protoreflect.Value) answer {
	x.calls++
	request := proto.Clone(x.base)
	renumber(request.ProtoReflect(), fmt.Sprint("-", x.calls))
	f.set(request.ProtoReflect(), v)
	body := bytes.ReplaceAll(connectProto.Encode(x.T, request), []byte(rawMark), []byte(rawBytes))
	begun := time.Now()
	p, headers := connectProto, []string(nil)
	if x.m.IsStreamingServer() {
		p, headers = grpc, []string{"Grpc-Timeout", "100m"}
	}
	a := x.caller.send(p, path(x.m), body, headers...)
	if took := time.Since(begun); took > 10*time.Second {
		x.T.Errorf("%s %v: took %v", callName(x.m), f, took)
	}
	return a
}

// reasons returns the documented reasons, all of docs/reference/errors.md except INTERNAL.
var reasons = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, r := range fault.All() {
		all[r.Name] = true
	}
	delete(all, fault.InternalError.Name)
	return all
})

// failures are the codes of server failures and of calls that hang.
var failures = map[string]bool{"unknown": true, "internal": true, "unavailable": true, "deadline_exceeded": true,
	"canceled": true, "data_loss": true}

// check checks that an answer is a success, or an error with a documented reason.
func (x *attack) check(what string, a answer) {
	if x.m.IsStreamingServer() && a.Code == "deadline_exceeded" {
		return
	}
	if failures[a.Code] || a.Code != "" && !reasons()[a.Reason(x.T)] {
		x.T.Errorf("%s %s: %s %.300s", callName(x.m), what, a.Code, a.Message)
	}
	if a.Header.Get("X-Injected") != "" {
		x.T.Errorf("%s %s: a header of the caller's in the response", callName(x.m), what)
	}
}

// string sends a hostile text in a field, and checks that the call refuses it where required.
func (x *attack) string(f target, h hostile) {
	a := x.send(f, protoreflect.ValueOfString(h.text))
	what := fmt.Sprintf("%v with %s", f, h.what)
	x.check(what, a)
	refused := a.Code == "invalid_argument" || inItem.Match(a.Raw)
	name, field := string(f.last().Parent().Name())+"."+string(f.last().Name()), string(f.last().Name())
	switch {
	case h.text == rawMark, h.what == "NUL": // nowhere
	case slices.Contains(amountFields, field):
		if !h.noAmount {
			return
		}
	case !h.unseen, reads(x.m), storedNothing[a.Code], freeTexts[name] != "", freeTexts[field] != "":
		return
	}
	if !refused {
		x.T.Errorf("%s %s: accepted: %s %.200s", callName(x.m), what, a.Code, a.Message)
	} else if a.Code == "invalid_argument" && h.text != rawMark && len(h.text) < 1<<10 && !f.namedIn(a) {
		x.T.Errorf("%s %s: the error does not name the field: %.200s", callName(x.m), what, a.Message)
	}
}

// runAll runs attacks at the same time, and returns the number of requests.
func runAll(all []*attack) (calls int) {
	work := make(chan *attack, len(all))
	for _, x := range all {
		work <- x
	}
	close(work)
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			for x := range work {
				x.run()
			}
		})
	}
	running.Wait()
	for _, x := range all {
		calls += x.calls
	}
	return calls
}

// Each field of each call gets each hostile value. Every answer is documented, the rows of another tenant do not
// change, and stored names have no invisible characters.
func TestHostileValuesInEveryFieldOfEveryCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, mine := createResources(s, "mine")
	createResources(s, "theirs")
	before := s.dump("theirs")
	var all []*attack
	for _, m := range methods(t) {
		all = append(all, &attack{caller: me, m: m, base: examples[callName(m)](mine)[0]})
	}
	operator := &caller{s, s.Key("operators", "op", access.Operator)}
	for _, x := range adminExamples() {
		all = append(all, &attack{caller: operator, m: method(t, x.name), base: x.m})
	}
	if every := servertest.Methods(t); len(all) != len(every) {
		t.Errorf("%d of %d calls are attacked", len(all), len(every))
	}
	calls := runAll(all)
	t.Logf("%d requests", calls)
	if calls < 5000 {
		t.Errorf("only %d requests", calls)
	}
	after := s.dump("theirs")
	for table, rows := range before {
		if after[table] != rows {
			t.Errorf("rows of another tenant changed in %s", table)
		}
	}
	s.checkStored(t)
	secrets := []string{canary, secretNote, strings.Split(me.apiKey, "_")[3],
		strings.Split(operator.apiKey, "_")[3], mine.token, "Bearer ", "whsec_"}
	for _, m := range methods(t) {
		for _, r := range examples[callName(m)](mine) {
			secrets = secretsOf(r.ProtoReflect(), secrets)
		}
	}
	t.Logf("%d secrets", len(secrets))
	s.checkLog(t, secrets...)
	_, metrics := servertest.Get(t, s.Base+"/metrics", s.watcher())
	for _, x := range append(secrets, "mine", "theirs") {
		if strings.Contains(metrics, x) {
			t.Errorf("%q is in the metrics", x)
		}
	}
}

// storedTexts are the columns that may have invisible characters.
var storedTexts = map[string]string{
	"audit_events.after": "labels and reasons", "audit_events.before": "labels and reasons",
	"coupon_coupons.metadata": "the caller's own data", "ledger_account_details.metadata": "the caller's own data",
	"ledger_holds.metadata": "the caller's own data", "ledger_transfers.metadata": "the caller's own data",
	"order_orders.metadata": "the caller's own data", "stock_item_details.metadata": "the caller's own data",
	"sale_sales.metadata": "the caller's own data", "machine_history.inputs": "the caller's own data",
	"inbox_messages.message_id": "the sender's", "inbox_messages.part": "the sender's",
	"inbox_messages.failure_text": "prose", "inbox_messages.result": "prose",
	"machine_definitions.definition": "labels and reasons", "machine_history.cause": "prose",
	"machine_history.reason": "prose", "machine_instances.cause": "prose", "order_orders.lines": "descriptions",
	"notify_template_versions.definition": "content", "payment_refunds.reason": "prose",
	"stock_changes.reason":     "prose",
	"stock_item_details.label": "prose", "notify_endpoints.description": "prose", "claim_keys.result": "prose",
}

// checkStored checks that only the columns of storedTexts have invisible characters, and that all of these exist.
func (s *site) checkStored(t *testing.T) {
	t.Helper()
	rows, _ := s.Pool.Query(t.Context(), `select relname::text from pg_class where relnamespace = 'public'::regnamespace
		and relkind in ('r', 'p') and not relispartition order by 1`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var each []string
	for _, table := range tables {
		each = append(each, `select '`+table+`.' || x.key from `+table+` t, jsonb_each_text(to_jsonb(t)) x where
			x.value ~ U&'[\202e\200b]'`)
	}
	for c := range storedTexts {
		table, column, _ := strings.Cut(c, ".")
		if s.Count("select count(*) from pg_attribute where attrelid = to_regclass($1) and attname = $2",
			table, column) != 1 {
			t.Errorf("there is no column %s", c)
		}
	}
	rows, _ = s.Pool.Query(t.Context(), strings.Join(each, " union "))
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range columns {
		if storedTexts[c] == "" {
			t.Errorf("%s has invisible characters", c)
		}
	}
}

// loggedNames are the fields of log lines that may contain names chosen by callers.
var loggedNames = []string{"scope", "key"} // of work

// checkLog checks that the log has no errors, and none of the texts.
func (s *site) checkLog(t *testing.T, secrets ...string) {
	t.Helper()
	found := 0
	for text := range strings.Lines(s.Log.String()) {
		line := map[string]any{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(line, func(name string, _ any) bool { return slices.Contains(loggedNames, name) })
		rest := fmt.Sprint(line)
		has := func(secret string) bool { return strings.Contains(rest, secret) }
		if line["level"] == "ERROR" || slices.ContainsFunc(secrets, has) {
			if found++; found <= 20 {
				t.Errorf("in the log: %.500s", text)
			}
		}
	}
}

// secretsOf appends the texts of a request that no log may contain: tokens, recipients and contents.
func secretsOf(m protoreflect.Message, secrets []string) []string {
	for _, f := range targets(m.Descriptor(), nil) {
		switch f.last().Name() {
		case "recipient", "token", "text", "html", "payer", "string_value":
			if text := f.get(m); len(text) > 5 {
				secrets = append(secrets, text)
			}
		}
	}
	return secrets
}

// get returns a string, or "".
func (x target) get(m protoreflect.Message) string {
	for _, f := range x.path[:len(x.path)-1] {
		switch {
		case !m.Has(f):
			return ""
		case f.IsMap():
			var last protoreflect.Value
			m.Get(f).Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { last = v; return true })
			m = last.Message()
		case f.IsList():
			m = m.Get(f).List().Get(0).Message()
		default:
			m = m.Get(f).Message()
		}
	}
	if f := x.last(); f.IsList() || f.IsMap() || f.Kind() != protoreflect.StringKind {
		return ""
	}
	return m.Get(x.last()).String()
}

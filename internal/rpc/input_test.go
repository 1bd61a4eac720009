package rpc_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// transferWith returns a valid Transfer in JSON, with one field replaced.
func transferWith(field, value string) string {
	f := map[string]string{"bizNo": `"x"`, "from": `"u:a"`, "to": `"world"`, "asset": `"COIN"`, "amount": `"1"`,
		"metadata": "{}", "more": `""`}
	f[field] = value
	more := ""
	if field == "more" {
		more = "," + value
	}
	return `{"bizNo":` + f["bizNo"] + `,"metadata":` + f["metadata"] + `,"postings":[{"from":` + f["from"] + `,"to":` +
		f["to"] +
		`,"asset":` + f["asset"] + `,"amount":` + f["amount"] + `}]` + more + `}`
}

var badJSON = map[string]string{
	"nothing": "", "no JSON": "{", "a list": "[]", "null": "null", "two": "{}{}", "empty": "{}",
	"unknown field":       transferWith("more", `"color":"red"`),
	"wrong type":          transferWith("bizNo", "7"),
	"number as amount":    transferWith("amount", "12.30"),
	"exponent":            transferWith("amount", `"1e3"`),
	"negative":            transferWith("amount", `"-1"`),
	"zero":                transferWith("amount", `"0.00"`),
	"no amount":           transferWith("amount", `""`),
	"39 digits":           transferWith("amount", `"`+strings.Repeat("9", 39)+`"`),
	"19 decimals":         transferWith("amount", `"0.`+strings.Repeat("1", 19)+`"`),
	"leading zeros":       transferWith("amount", `"007"`),
	"space in amount":     transferWith("amount", `" 1"`),
	"comma":               transferWith("amount", `"1,5"`),
	"other digits":        transferWith("amount", `"१"`),
	"NUL in biz_no":       transferWith("bizNo", `"a\u0000b"`),
	"NUL in account":      transferWith("from", `"u:a\u0000"`),
	"NUL in asset":        transferWith("asset", `"COIN\u0000"`),
	"NUL in metadata":     transferWith("metadata", `{"a":"\u0000"}`),
	"NUL in a name":       transferWith("metadata", `{"a\u0000":"b"}`),
	"lone surrogate":      transferWith("bizNo", `"\ud800"`),
	"8 kB biz_no":         transferWith("bizNo", `"`+strings.Repeat("b", 8192)+`"`),
	"biz_no of any kind":  transferWith("bizNo", `"größe"`),
	"no biz_no":           transferWith("bizNo", `""`),
	"from is to":          transferWith("to", `"u:a"`),
	"much metadata":       transferWith("metadata", `{"a":"`+strings.Repeat("m", 17<<10)+`"}`),
	"long metadata name":  transferWith("metadata", `{"`+strings.Repeat("m", 129)+`":""}`),
	"reversal":            transferWith("more", `"type":"reversal"`),
	"far ahead":           transferWith("more", `"effectiveTime":"2999-01-01T00:00:00Z"`),
	"nanoseconds":         transferWith("more", `"effectiveTime":"2020-01-01T00:00:00.000000001Z"`),
	"no time":             transferWith("more", `"effectiveTime":"yesterday"`),
	"no postings":         `{"bizNo":"x"}`,
	"unknown enum":        strings.Replace(transferWith("amount", `"1","form":"HALF"`), "HALF", "HALF", 1),
	"unknown enum number": transferWith("amount", `"1","form":77`),
	"deep":                `{"metadata":` + strings.Repeat(`{"a":`, 20_000) + strings.Repeat("}", 20_000) + "}",
	"invalid UTF-8":       transferWith("bizNo", "\"\xff\""),
	"twice":               transferWith("more", `"bizNo":"y"`),
}

func TestInvalidInputIsRefusedWithoutEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := s.dump("mine")
	check := func(what string, a answer) {
		t.Helper()
		if a.Code != "invalid_argument" || a.Reason(t) != "FIELD_INVALID" || len(a.Raw) > 8<<10 ||
			strings.Contains(a.Message, "\u00a0") {
			t.Errorf("%s: %s %.300s (%d bytes)", what, a.Code, a.Message, len(a.Raw))
		}
		if a.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: no request id", what)
		}
	}
	for what, body := range badJSON {
		check(what, c.send(connectJSON, path(method(t, "Transfer")), []byte(body), "Idempotency-Key", "bad"))
	}
	transfer := path(method(t, "Transfer"))
	good := connectProto.Encode(t, payment("a", "1"))
	unknown := protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "?")
	inPosting := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), unknown)
	for _, p := range []protocol{connectProto, grpc, grpcWeb} {
		check("no proto", c.send(p, transfer, []byte("\xff\xff\xff"), "Idempotency-Key", "bad"))
		check("invalid UTF-8", c.send(p, transfer, append(good[:len(good):len(good)], 0x0a, 1, 0xff), "Idempotency-Key",
			"bad"))
		check("unknown field", c.send(p, transfer, append(good[:len(good):len(good)], unknown...), "Idempotency-Key",
			"bad"))
		check("unknown field inside", c.send(p, transfer, append(good[:len(good):len(good)], inPosting...),
			"Idempotency-Key", "bad"))
	}
	for _, p := range protocols {
		a := c.send(p, transfer, bytes.Repeat([]byte(" "), 17<<20), "Idempotency-Key", "bad")
		check("17 MiB over "+p.Name, a)
		if !strings.Contains(a.Message, "the limit of this call") {
			t.Errorf("17 MiB over %s: %s", p.Name, a.Message)
		}
	}
	for what, body := range map[string][]byte{"a bomb": zipped(bytes.Repeat([]byte(" "), 20<<20)),
		"a bomb of many parts": bytes.Repeat(zipped(bytes.Repeat([]byte(" "), 1<<20)), 100),
		"no gzip":              []byte("{}"), "nothing": {},
		"half a zip": zipped([]byte(transferWith("amount", `"1"`)))[:60]} {
		a := c.send(connectJSON, transfer, body, "Content-Encoding", "gzip")
		info, _ := servertest.Detail(a.Answer, new(errdetails.ErrorInfo))
		if strings.HasPrefix(what, "a bomb") && !strings.Contains(a.Message, "128 times") {
			t.Errorf("%s: %s", what, a.Message)
		}
		if a.Code != "invalid_argument" || info.GetReason() != "FIELD_INVALID" || a.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %s %s", what, a.Code, a.Message)
		}
	}
	many := &ledgerv1.TransferBatchRequest{AllOrNothing: true}
	for range 10_000 {
		many.Items = append(many.Items, &ledgerv1.TransferBatchItem{})
	}
	check("10,000 bad fields", c.call(grpc, "TransferBatch", many))
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	if a := c.send(connectJSON, transfer, []byte(transferWith("amount", `"1"`)), "Idempotency-Key",
		"bad"); a.Code != "" {
		t.Errorf("corrected, with the same key: %s", a.Raw)
	}
}

func TestErrorsNameTheFields(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	names := func(what, want string, a answer) {
		t.Helper()
		bad, found := servertest.Detail(a.Answer, new(errdetails.BadRequest))
		if !found || len(bad.GetFieldViolations()) != 1 || bad.GetFieldViolations()[0].GetField() != want {
			t.Errorf("%s: %v, want %s", what, bad, want)
		}
		if !strings.Contains(a.Message, want) {
			t.Errorf("%s: %s, without %s", what, a.Message, want)
		}
	}
	for field, value := range map[string]string{"postings[0].amount": `"\t"`, "bizNo": `"\t"`,
		"postings[0].from": "7"} {
		key := field[strings.LastIndexByte(field, '.')+1:]
		names(field, field, c.send(connectJSON, path(method(t, "Transfer")), []byte(transferWith(key, value))))
	}
	bad := &ledgerv1.TransferRequest{BizNo: "\t", Postings: posting("a", "b", "COIN", "1")}
	names("protobuf", "biz_no", c.call(connectProto, "Transfer", bad))
	names("gRPC", "biz_no", c.call(grpc, "Transfer", bad))
	batch := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{{Transfer: bad}}}
	if a := c.call(connectJSON, "TransferBatch", batch); !strings.Contains(string(a.Raw), `"field":"bizNo"`) {
		t.Errorf("an item of a batch: %s", a.Raw)
	}
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// The proto counts characters, the table counts bytes. The server checks both, so that the database refuses nothing.
func TestLongCodesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	for _, x := range []struct {
		code string
		want string
	}{{strings.Repeat("帳", 85) + "a", ""}, {strings.Repeat("帳", 86), "FIELD_INVALID"}, {strings.Repeat("帳", 256),
		"FIELD_INVALID"}} {
		a := c.call(connectProto, "CreateAccounts",
			&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: x.code, Asset: "COIN"}}})
		if x.want != "" && a.Reason(t) != x.want || x.want == "" && a.Code != "" {
			t.Errorf("%d bytes: %s %s", len(x.code), a.Code, a.Message)
		}
	}
}

func TestCompressionBothWays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	r := &ledgerv1.TransferBatchRequest{}
	for i := range 100 {
		r.Items = append(r.Items, item("z"+strings.Repeat("i", i), "u:a", "0.01", ""))
	}
	a := c.send(connectJSON, path(method(t, "TransferBatch")), zipped(connectJSON.Encode(t, r)), "Content-Encoding",
		"gzip", "Accept-Encoding", "gzip", "Idempotency-Key", "z")
	if a.Status != http.StatusOK || a.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%d %v %.200s", a.Status, a.Header, a.Raw)
	}
	zip, err := gzip.NewReader(bytes.NewReader(a.Raw))
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	if _, err := plain.ReadFrom(zip); err != nil {
		t.Fatal(err)
	}
	if again := c.call(connectJSON, "TransferBatch", r, "Idempotency-Key", "z"); !bytes.Equal(again.Raw,
		plain.Bytes()) {
		t.Error("the replay without compression differs")
	}
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Read)}
	for contentType, want := range map[string]int{"application/json": 200, "application/json; charset=utf-8": 200,
		"application/json;charset=UTF-8": 200,
		"text/plain":                     415, "application/xml": 415, "": 415} {
		a := c.send(protocol{ContentType: contentType}, path(method(t, "ListAssets")), []byte("{}"))
		if a.Status != want {
			t.Errorf("%q: %d %s", contentType, a.Status, a.Raw)
		}
	}
}

func TestReadsAnswerGet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, mine := createResources(s, "mine")
	for _, m := range methods(t) {
		if m.IsStreamingServer() {
			continue
		}
		q := url.Values{"connect": {"v1"}, "encoding": {"json"},
			"message": {string(connectJSON.Encode(t, c.fenced(examples[callName(m)](mine)[0])))}}
		req, _ := http.NewRequest(http.MethodGet, s.Base+path(m)+"?"+q.Encode(), nil)
		req.Header.Set("Authorization", "Bearer "+c.apiKey)
		res, err := servertest.HTTP1.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, _ = body.ReadFrom(res.Body)
		res.Body.Close()
		if want := map[bool]int{true: 200, false: 405}[reads(m)]; res.StatusCode != want || want == 200 &&
			!json.Valid(body.Bytes()) {
			t.Errorf("GET %s: %d %s", m.Name(), res.StatusCode, body.String())
		}
	}
}

// Metadata that the server accepts fits into the row: the maximum size, of characters that take six bytes in jsonb
// text.
func TestLargestMetadataFitsIntoTheRow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	body := transferWith("metadata", `{"a":"`+strings.Repeat(`\u0001`, 16<<10-1)+`"}`)
	a := c.send(connectJSON, path(method(t, "Transfer")), []byte(body))
	if a.Code != "" {
		t.Errorf("%s: %s", a.Code, a.Message)
	}
}

// An empty name is invalid: the error is not that the name was not found.
func TestEmptyNamesAreBadRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("shop", "clerk", access.Admin)}
	seen := 0
	for _, m := range methods(t) {
		for i := range m.Input().Oneofs().Len() {
			names := m.Input().Oneofs().Get(i).Fields()
			for j := range names.Len() {
				f := names.Get(j)
				if f.Kind() != protoreflect.StringKind || f.HasOptionalKeyword() {
					continue
				}
				seen++
				a := c.send(connectJSON, path(m), []byte(`{"`+f.JSONName()+`":""}`))
				if a.Code != "invalid_argument" || !bytes.Contains(a.Raw, []byte(f.JSONName())) {
					t.Errorf("%s with an empty %s: %s", callName(m), f.JSONName(), a.Raw)
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d names", seen)
	}
}

package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
)

// protocol is one of the ways to speak to the server, with the bytes in view.
type protocol struct {
	name        string
	contentType string
	framed, h2  bool
}

var (
	connectJSON  = protocol{name: "Connect JSON", contentType: "application/json"}
	connectProto = protocol{name: "Connect proto", contentType: "application/proto"}
	grpc         = protocol{name: "gRPC", contentType: "application/grpc+proto", framed: true, h2: true}
	grpcWeb      = protocol{name: "gRPC-Web", contentType: "application/grpc-web+proto", framed: true}
	protocols    = []protocol{connectJSON, connectProto, grpc, grpcWeb}
)

var (
	http1 = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true},
		Timeout: time.Minute}
	http2 = &http.Client{Transport: h2c(), Timeout: time.Minute}
)

func h2c() *http.Transport {
	t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// answer is what came back.
type answer struct {
	status  int
	code    string // Connect code, "" when all went well
	message string
	raw     []byte // the message, or what stands for an error, byte for byte
	header  http.Header
	details []*anypb.Any
}

// caller is somebody with an API key.
type caller struct {
	*site
	apiKey string
}

func path(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func (p protocol) encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	if p.contentType == connectJSON.contentType {
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (p protocol) decode(t testing.TB, raw []byte, into proto.Message) {
	t.Helper()
	err := error(nil)
	if p.contentType == connectJSON.contentType {
		err = protojson.Unmarshal(raw, into)
	} else {
		err = proto.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatalf("%s: %v in %q", p.name, err, raw)
	}
}

// call calls a method by name. More headers come as name, value, ...
func (c *caller) call(p protocol, name string, m proto.Message, headers ...string) answer {
	c.t.Helper()
	return c.send(p, path(method(c.t, name)), p.encode(c.t, c.fenced(m)), headers...)
}

// ok calls over Connect proto and wants success.
func ok[R proto.Message](c *caller, name string, m proto.Message, res R, headers ...string) R {
	c.t.Helper()
	a := c.call(connectProto, name, m, headers...)
	if a.code != "" {
		c.t.Fatalf("%s: %s: %s", name, a.code, a.message)
	}
	connectProto.decode(c.t, a.raw, res)
	return res
}

func (c *caller) send(p protocol, path string, body []byte, headers ...string) answer {
	c.t.Helper()
	if p.framed {
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", p.contentType)
	if p == grpc {
		req.Header.Set("Te", "trailers")
	}
	if c.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[textproto.CanonicalMIMEHeaderKey(headers[i])] = append(req.Header.Values(headers[i]), headers[i+1])
	}
	client := http1
	if p.h2 {
		client = http2
	}
	res, err := client.Do(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", p.name, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return p.read(c.t, res, raw)
}

func (p protocol) read(t testing.TB, res *http.Response, raw []byte) answer {
	t.Helper()
	a := answer{status: res.StatusCode, header: res.Header.Clone(), raw: raw}
	if !p.framed {
		if res.StatusCode != http.StatusOK {
			a.readConnectError(t)
		}
		return a
	}
	maps.Copy(a.header, res.Trailer)
	a.raw = nil
	for len(raw) >= 5 {
		n := binary.BigEndian.Uint32(raw[1:])
		frame := raw[5 : 5+n]
		if raw[0]&0x80 != 0 {
			for line := range strings.Lines(string(frame)) {
				k, v, _ := strings.Cut(line, ":")
				a.header[textproto.CanonicalMIMEHeaderKey(k)] = []string{strings.TrimSpace(v)}
			}
		} else {
			a.raw = frame
		}
		raw = raw[5+n:]
	}
	a.readGRPCStatus(t)
	return a
}

func (a *answer) readConnectError(t testing.TB) {
	t.Helper()
	var e struct {
		Code, Message string
		Details       []struct{ Type, Value string }
	}
	if err := json.Unmarshal(a.raw, &e); err != nil {
		a.code, a.message = "http", string(a.raw)
		return
	}
	a.code, a.message = e.Code, e.Message
	for _, d := range e.Details {
		value, err := base64.RawStdEncoding.DecodeString(d.Value)
		if err != nil {
			t.Fatal(err)
		}
		a.details = append(a.details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value})
	}
}

func (a *answer) readGRPCStatus(t testing.TB) {
	t.Helper()
	status := a.header.Get("Grpc-Status")
	if status == "0" {
		return
	}
	n := slices.Index([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
		"16"}, status)
	if n < 0 {
		t.Fatalf("no status in %v", a.header)
	}
	a.code = connect.Code(n).String()
	a.message, _ = url.PathUnescape(a.header.Get("Grpc-Message"))
	details, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(a.header.Get("Grpc-Status-Details-Bin"), "="))
	if err != nil {
		t.Fatal(err)
	}
	a.raw = append([]byte(a.header.Get("Grpc-Message")+"\n"), details...)
	s := new(statuspb.Status)
	if err := proto.Unmarshal(details, s); err != nil {
		t.Fatal(err)
	}
	a.details = s.Details
}

// detail finds a detail of an error.
func detail[D proto.Message](a answer, d D) (D, bool) {
	for _, x := range a.details {
		if x.MessageIs(d) {
			return d, x.UnmarshalTo(d) == nil
		}
	}
	return d, false
}

// reason is the reason of an error; every error has one, and the rest that goes with it.
func (a answer) reason(t testing.TB) string {
	t.Helper()
	info, found := detail(a, new(errdetails.ErrorInfo))
	if !found || info.GetDomain() != "ledgerd" || info.GetReason() == "" {
		t.Fatalf("no ErrorInfo: %d %s %q %q", a.status, a.code, a.message, a.raw)
	}
	d, found := detail(a, new(errorsv1.ErrorDetail))
	if !found || d.GetClass() == 0 || d.GetNextStep() == 0 || d.GetRequestId() == "" {
		t.Fatalf("no whole ErrorDetail: %v, %v", a.message, d)
	}
	if a.message == "" || strings.Contains(strings.ToLower(a.message), "sqlstate") {
		t.Fatalf("message %q", a.message)
	}
	return info.GetReason()
}

func (a answer) state(name string) string {
	info, _ := detail(a, new(errdetails.ErrorInfo))
	return info.GetMetadata()[name]
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

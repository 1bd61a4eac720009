package servertest

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

// Protocol is a wire protocol and an encoding. Tests compare its bytes.
type Protocol struct {
	Name        string
	ContentType string
	Framed, H2  bool
}

// All protocols of the server.
var (
	ConnectJSON  = Protocol{Name: "Connect JSON", ContentType: "application/json"}
	ConnectProto = Protocol{Name: "Connect proto", ContentType: "application/proto"}
	GRPC         = Protocol{Name: "gRPC", ContentType: "application/grpc+proto", Framed: true, H2: true}
	GRPCWeb      = Protocol{Name: "gRPC-Web", ContentType: "application/grpc-web+proto", Framed: true}
	Protocols    = []Protocol{ConnectJSON, ConnectProto, GRPC, GRPCWeb}
)

// Clients for HTTP/1.1 and for HTTP/2 without TLS.
var (
	HTTP1 = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true},
		Timeout: time.Minute}
	HTTP2 = &http.Client{Transport: h2c(), Timeout: time.Minute}
)

func h2c() *http.Transport {
	t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// Answer is a response.
type Answer struct {
	Status  int
	Code    string // Connect code; "": success
	Message string
	Raw     []byte // the message, or the error, byte for byte
	Header  http.Header
	Details []*anypb.Any
}

// Caller has an API key.
type Caller struct {
	*Site
	APIKey string
}

// Path returns the URL path of a method.
func Path(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// Encode encodes a message.
func (p Protocol) Encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	if p.ContentType == ConnectJSON.ContentType {
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

// Decode decodes the message of a response.
func (p Protocol) Decode(t testing.TB, raw []byte, into proto.Message) {
	t.Helper()
	err := error(nil)
	if p.ContentType == ConnectJSON.ContentType {
		err = protojson.Unmarshal(raw, into)
	} else {
		err = proto.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatalf("%s: %v in %q", p.Name, err, raw)
	}
}

// Call calls a method by name. More headers come as name, value, ...
func (c *Caller) Call(p Protocol, name string, m proto.Message, headers ...string) Answer {
	c.T.Helper()
	return c.Send(p, Path(Method(c.T, name)), p.Encode(c.T, m), headers...)
}

// OK calls over Connect with protobuf, and fails the test on an error.
func (c *Caller) OK(name string, m, res proto.Message, headers ...string) {
	c.T.Helper()
	a := c.Call(ConnectProto, name, m, headers...)
	if a.Code != "" {
		c.T.Fatalf("%s: %s: %s", name, a.Code, a.Message)
	}
	ConnectProto.Decode(c.T, a.Raw, res)
}

// Send posts a body to a path.
func (c *Caller) Send(p Protocol, path string, body []byte, headers ...string) Answer {
	c.T.Helper()
	if p.Framed {
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, c.Base+path, bytes.NewReader(body))
	if err != nil {
		c.T.Fatal(err)
	}
	req.Header.Set("Content-Type", p.ContentType)
	if p == GRPC {
		req.Header.Set("Te", "trailers")
	}
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[textproto.CanonicalMIMEHeaderKey(headers[i])] = append(req.Header.Values(headers[i]), headers[i+1])
	}
	client := HTTP1
	if p.H2 {
		client = HTTP2
	}
	res, err := client.Do(req)
	if err != nil {
		c.T.Fatalf("%s %s: %v", p.Name, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		c.T.Fatal(err)
	}
	return p.Read(c.T, res, raw)
}

// Read reads a response, whose body is raw.
func (p Protocol) Read(t testing.TB, res *http.Response, raw []byte) Answer {
	t.Helper()
	a := Answer{Status: res.StatusCode, Header: res.Header.Clone(), Raw: raw}
	if !p.Framed {
		if res.StatusCode != http.StatusOK {
			a.readConnectError(t)
		}
		return a
	}
	maps.Copy(a.Header, res.Trailer)
	a.Raw = nil
	for len(raw) >= 5 {
		n := binary.BigEndian.Uint32(raw[1:])
		frame := raw[5 : 5+n]
		if raw[0]&0x80 != 0 {
			for line := range strings.Lines(string(frame)) {
				k, v, _ := strings.Cut(line, ":")
				a.Header[textproto.CanonicalMIMEHeaderKey(k)] = []string{strings.TrimSpace(v)}
			}
		} else {
			a.Raw = frame
		}
		raw = raw[5+n:]
	}
	a.readGRPCStatus(t)
	return a
}

func (a *Answer) readConnectError(t testing.TB) {
	t.Helper()
	var e struct {
		Code, Message string
		Details       []struct{ Type, Value string }
	}
	if err := json.Unmarshal(a.Raw, &e); err != nil {
		a.Code, a.Message = "http", string(a.Raw)
		return
	}
	a.Code, a.Message = e.Code, e.Message
	for _, d := range e.Details {
		value, err := base64.RawStdEncoding.DecodeString(d.Value)
		if err != nil {
			t.Fatal(err)
		}
		a.Details = append(a.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value})
	}
}

func (a *Answer) readGRPCStatus(t testing.TB) {
	t.Helper()
	status := a.Header.Get("Grpc-Status")
	if status == "0" {
		return
	}
	n := slices.Index([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
		"16"}, status)
	if n < 0 {
		t.Fatalf("no status in %v", a.Header)
	}
	a.Code = connect.Code(n).String()
	a.Message, _ = url.PathUnescape(a.Header.Get("Grpc-Message"))
	details, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(a.Header.Get("Grpc-Status-Details-Bin"), "="))
	if err != nil {
		t.Fatal(err)
	}
	a.Raw = append([]byte(a.Header.Get("Grpc-Message")+"\n"), details...)
	s := new(statuspb.Status)
	if err := proto.Unmarshal(details, s); err != nil {
		t.Fatal(err)
	}
	a.Details = s.Details
}

// Detail returns a detail of an error.
func Detail[D proto.Message](a Answer, d D) (D, bool) {
	for _, x := range a.Details {
		if x.MessageIs(d) {
			return d, x.UnmarshalTo(d) == nil
		}
	}
	return d, false
}

// Reason returns the reason of an error. Every error must have one, with a complete ErrorDetail.
func (a Answer) Reason(t testing.TB) string {
	t.Helper()
	info, found := Detail(a, new(errdetails.ErrorInfo))
	if !found || info.GetDomain() != "ledgerd" || info.GetReason() == "" {
		t.Fatalf("no ErrorInfo: %d %s %q %q", a.Status, a.Code, a.Message, a.Raw)
	}
	d, found := Detail(a, new(errorsv1.ErrorDetail))
	if !found || d.GetClass() == 0 || d.GetNextStep() == 0 || d.GetRequestId() == "" {
		t.Fatalf("no complete ErrorDetail: %v, %v", a.Message, d)
	}
	if a.Message == "" || strings.Contains(strings.ToLower(a.Message), "sqlstate") {
		t.Fatalf("message %q", a.Message)
	}
	return info.GetReason()
}

// State returns a value of the error's metadata.
func (a Answer) State(name string) string {
	info, _ := Detail(a, new(errdetails.ErrorInfo))
	return info.GetMetadata()[name]
}

// Replayed reports whether the response is a replay.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotency-Replayed") == "true" }

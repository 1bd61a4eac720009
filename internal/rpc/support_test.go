package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// edge serves the ledger without a database: calls succeed once their request is read.
type edge struct {
	ledgerv1connect.UnimplementedLedgerServiceHandler
	*httptest.Server
}

func (edge) ListAssets(context.Context, *pb.ListAssetsRequest) (*pb.ListAssetsResponse, error) {
	return &pb.ListAssetsResponse{}, nil
}

func (edge) WatchEntries(context.Context, *pb.WatchEntriesRequest,
	*connect.ServerStream[pb.WatchEntriesResponse]) error {
	return nil
}

func newEdge(t *testing.T) *edge {
	gate := &Gate{Metrics: NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
		Anyone: access.Identity{Role: access.Write}}
	e := &edge{}
	mux := http.NewServeMux()
	mux.Handle(Supported(ledgerv1connect.NewLedgerServiceHandler(e, gate.Options()...)))
	mux.HandleFunc("/", NotFound)
	e.Server = httptest.NewUnstartedServer(NewAdmission(nil).Handler(slog.New(slog.DiscardHandler), mux))
	e.Config.Protocols = new(http.Protocols)
	e.Config.Protocols.SetHTTP1(true)
	e.Config.Protocols.SetUnencryptedHTTP2(true)
	e.Start()
	t.Cleanup(e.Close)
	return e
}

// exchange sends bytes over HTTP/1 and returns the response. With last it closes its side of the connection before it
// reads, as a client that goes away does. That may cancel the call.
func (e *edge) exchange(t *testing.T, request string, last bool) (*http.Response, []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", e.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if last {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// problem is an error of any protocol.
type problem struct {
	code, message string
	details       []*anypb.Any
}

func detailIn[D proto.Message](p problem, d D) D {
	for _, x := range p.details {
		if x.MessageIs(d) {
			_ = x.UnmarshalTo(d)
		}
	}
	return d
}

// problemInJSON reads an error of Connect.
func problemInJSON(t *testing.T, body []byte) (p problem) {
	t.Helper()
	var e struct {
		Code, Message string
		Details       []struct{ Type, Value string }
	}
	if err := json.Unmarshal(body, &e); err != nil {
		t.Errorf("%v: %q", err, body)
		return p
	}
	p.code, p.message = e.Code, e.Message
	for _, d := range e.Details {
		value, _ := base64.RawStdEncoding.DecodeString(d.Value)
		p.details = append(p.details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value})
	}
	return p
}

// check checks that the error has a reason, a request id and a message with the text.
func (p problem) check(t *testing.T, what, reason, text string) {
	t.Helper()
	if got := detailIn(p, &errdetails.ErrorInfo{}).GetReason(); got != reason {
		t.Errorf("%s: reason %q, want %s: %s %s", what, got, reason, p.code, p.message)
	}
	if detailIn(p, &errorsv1.ErrorDetail{}).GetRequestId() == "" {
		t.Errorf("%s: no request id", what)
	}
	if !strings.Contains(p.message, text) {
		t.Errorf("%s: %q, want %q", what, p.message, text)
	}
}

const service = "/ledgerd.ledger.v1.LedgerService/"

func TestRequestsThatCannotBeReadAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	const aJSON = "Content-Type: application/json\r\n"
	post := func(call, headers, body string) string {
		return fmt.Sprintf("POST %s%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", service, call, headers,
			len(body), body)
	}
	get := func(call, query, headers string) string {
		return "GET " + service + call + "?" + query + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n"
	}
	of := func(method, call string) string {
		return method + " " + service + call + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	}
	chunked := func(body string) string {
		return "POST " + service + "ListAssets HTTP/1.1\r\nHost: x\r\n" + aJSON + "Transfer-Encoding: chunked\r\n\r\n" +
			body
	}
	for _, x := range []struct {
		what, request string
		status        int
		reason, text  string
	}{
		{"good GET", get("ListAssets", "encoding=json&message=%7B%7D", ""), 200, "", ""},
		{"good base64", get("ListAssets", "connect=v1&encoding=json&base64=1&message=e30", ""), 200, "", ""},
		{"good padded base64", get("ListAssets", "encoding=json&base64=1&message=e30%3D", ""), 200, "", ""},
		{"good POST", post("ListAssets", aJSON+"Connect-Timeout-Ms: 5000\r\nConnect-Protocol-Version: 1\r\n", "{}"),
			200, "", ""},
		{"good charset", post("ListAssets", "Content-Type: application/json;charset=UTF-8\r\n", "{}"), 200, "", ""},
		{"good chunks", chunked("2\r\n{}\r\n0\r\n\r\n"), 200, "", ""},

		{"base64", get("ListAssets", "encoding=json&base64=1&message=!!!", ""), 400, "FIELD_INVALID", "base64"},
		{"GET without message", get("ListAssets", "encoding=json", ""), 400, "FIELD_INVALID", "parameter message"},
		{"GET without encoding", get("ListAssets", "message=%7B%7D", ""), 400, "FIELD_INVALID", "parameter encoding"},
		{"version of GET", get("ListAssets", "connect=v9&encoding=json&message=%7B%7D", ""), 400, "FIELD_INVALID",
			"must be v1"},
		{"GET with a body", get("ListAssets", "encoding=json&message=%7B%7D", "Content-Length: 2\r\n") + "{}", 400,
			"FIELD_INVALID", "no body"},
		{"GET compression", get("ListAssets", "encoding=json&message=%7B%7D&compression=br", ""), 415, "UNSUPPORTED",
			"gzip"},
		{"compression", post("ListAssets", aJSON+"Content-Encoding: br\r\n", "{}"), 415, "UNSUPPORTED", "gzip"},
		{"timeout", post("ListAssets", aJSON+"Connect-Timeout-Ms: abc\r\n", "{}"), 400, "FIELD_INVALID",
			"Connect-Timeout-Ms"},
		{"negative timeout", post("ListAssets", aJSON+"Connect-Timeout-Ms: -5\r\n", "{}"), 400, "FIELD_INVALID",
			"Connect-Timeout-Ms"},
		{"long timeout", post("ListAssets", aJSON+"Connect-Timeout-Ms: 12345678901234567\r\n", "{}"), 400,
			"FIELD_INVALID", "10 digits"},
		{"timeout of GET", get("ListAssets", "encoding=json&message=%7B%7D", "Connect-Timeout-Ms: abc\r\n"), 400,
			"FIELD_INVALID", "Connect-Timeout-Ms"},
		{"version", post("ListAssets", aJSON+"Connect-Protocol-Version: 9\r\n", "{}"), 400, "FIELD_INVALID",
			"must be 1"},
		{"chunks", chunked("zz\r\n{}\r\n0\r\n\r\n"), 400, "FIELD_INVALID", "chunk"},
		{"last chunk", chunked("2\r\n{}\r\n"), 400, "FIELD_INVALID", "ends too early"},
		{"short body", strings.Replace(post("ListAssets", aJSON, "{}"), "Length: 2", "Length: 9", 1), 400,
			"FIELD_INVALID", "ends too early"},
		{"short large body", strings.Replace(post("ListAssets", aJSON, "{}"), "Length: 2", "Length: 60000", 1), 400,
			"FIELD_INVALID", "ends too early"},
		{"no content type", post("ListAssets", "", "{}"), 415, "UNSUPPORTED", "application/json"},
		{"content type of curl", post("ListAssets", "Content-Type: application/x-www-form-urlencoded\r\n", "{}"), 415,
			"UNSUPPORTED", "application/json"},
		{"parameter of a content type", post("ListAssets", "Content-Type: application/json; a=b\r\n", "{}"), 415,
			"UNSUPPORTED", "application/json"},
		{"content type of a stream", post("WatchEntries", aJSON, "{}"), 415, "UNSUPPORTED", "application/connect+json"},
		{"GET of a mutation", get("Transfer", "encoding=json&message=%7B%7D", ""), 405, "UNSUPPORTED", "send POST"},
		{"GET of a stream", get("WatchEntries", "encoding=json&message=%7B%7D", ""), 405, "UNSUPPORTED", "send POST"},
		{"PUT", of("PUT", "ListAssets"), 405, "UNSUPPORTED", "send GET, POST"},
		{"DELETE", of("DELETE", "Transfer"), 405, "UNSUPPORTED", "send POST"},
		{"OPTIONS", of("OPTIONS", "Transfer"), 405, "UNSUPPORTED", "send POST"},
		{"unknown call", post("Nothing", aJSON, "{}"), 404, "UNSUPPORTED", "no such call"},
		{"no call", post("", aJSON, "{}"), 404, "UNSUPPORTED", "no such call"},
		{"unknown service", "GET /ledgerd.Nothing/Get HTTP/1.1\r\nHost: x\r\n\r\n", 404, "UNSUPPORTED", "no such call"},
	} {
		res, body := e.exchange(t, x.request, x.text == "ends too early")
		if res.StatusCode != x.status || res.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %s, want %d", x.what, res.StatusCode, body, x.status)
			continue
		}
		if res.StatusCode == http.StatusMethodNotAllowed && res.Header.Get("Allow") == "" {
			t.Errorf("%s: no header Allow", x.what)
		}
		if x.reason != "" {
			problemInJSON(t, body).check(t, x.what, x.reason, x.text)
		}
	}
}

// A malformed frame is a bad request: as a failure of the database it would raise an alert.
func TestMalformedFramesAreRefused(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for _, body := range []string{"\x00\x00\x00\x00\xff{\"cu", "\x00\x00", "\x01\x00\x00\x00\x02{}", "",
		"\x00\x00\x00\x00\x02{}\x00\x00\x00\x00\x02{}"} {
		head := fmt.Sprintf("POST %sWatchEntries HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nContent-Type: ", service,
			len(body))
		_, frames := e.exchange(t, head+"application/connect+json\r\n\r\n"+body, false)
		if len(frames) < 5 || frames[0] != 2 {
			t.Errorf("%q: %q", body, frames)
			continue
		}
		var end struct{ Error json.RawMessage }
		_ = json.Unmarshal(frames[5:], &end)
		problemInJSON(t, end.Error).check(t, fmt.Sprintf("%q", body), "FIELD_INVALID", "")

		res, frames := e.exchange(t, head+"application/grpc-web+json\r\n\r\n"+body, false)
		trailer := res.Header
		if len(frames) > 5 && frames[0] == 0x80 {
			trailer = trailerOf(t, frames[5:5+binary.BigEndian.Uint32(frames[1:])])
		}
		inGRPC(t, trailer).check(t, fmt.Sprintf("gRPC-Web %q", body), "FIELD_INVALID", "")
	}
}

func TestUnsupportedGRPCRequestsHaveAReason(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	for _, x := range []struct{ what, call, header, value, reason, status string }{
		{"unknown call", "Nothing", "Te", "trailers", "UNSUPPORTED", "12"},
		{"compression", "ListAssets", "Grpc-Encoding", "br", "UNSUPPORTED", "12"},
		{"timeout", "ListAssets", "Grpc-Timeout", "5 seconds", "FIELD_INVALID", "3"},
		{"codec", "ListAssets", "Content-Type", "application/grpc+thrift", "UNSUPPORTED", "12"},
		{"good", "ListAssets", "Grpc-Timeout", "5S", "", "0"},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL+service+x.call,
			strings.NewReader("\x00\x00\x00\x00\x00"))
		req.Header = http.Header{"Content-Type": {"application/grpc"}}
		req.Header.Set(x.header, x.value)
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		trailer := res.Trailer
		if res.StatusCode != http.StatusOK || trailer.Get("Grpc-Status") != x.status {
			t.Errorf("%s: %d %v %v", x.what, res.StatusCode, res.Header, trailer)
		} else if x.reason != "" {
			inGRPC(t, trailer).check(t, x.what, x.reason, "")
		}
	}
}

func inGRPC(t *testing.T, trailer http.Header) problem {
	t.Helper()
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(trailer.Get("Grpc-Status-Details-Bin"), "="))
	s := new(statuspb.Status)
	if err == nil {
		err = proto.Unmarshal(b, s)
	}
	if err != nil {
		t.Errorf("%v: %v", trailer, err)
	}
	return problem{code: trailer.Get("Grpc-Status"), message: s.GetMessage(), details: s.GetDetails()}
}

func trailerOf(t *testing.T, frame []byte) http.Header {
	t.Helper()
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(append(frame, "\r\n"...)))).ReadMIMEHeader()
	if err != nil {
		t.Error(err)
	}
	return http.Header(h)
}

func TestCallersThatGoAwayAreNotTroubleOfTheDatabase(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	var out bytes.Buffer
	g := &Gate{Metrics: NewMetrics(nil), Log: slog.New(slog.NewTextHandler(&out,
		&slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, x := range []struct {
		ctx   context.Context
		err   error
		want  *fault.Reason
		level string
	}{
		{gone, context.Canceled, fault.NotRun, "DEBUG"},
		{gone, fault.OutcomeUnknown.New("unknown").Because(context.Canceled), fault.OutcomeUnknown, "DEBUG"},
		{gone, fault.DatabaseUnavailable.New("the API key cannot be checked").Because(context.Canceled), fault.NotRun,
			"DEBUG"},
		{gone, &pgconn.PgError{Code: "57P01"}, fault.DatabaseUnavailable, "WARN"},
		{gone, errors.New("a bug"), fault.InternalError, "ERROR"},
		{late, context.DeadlineExceeded, fault.NotRun, "WARN"},
		{context.Background(), fmt.Errorf("read: %w", &net.OpError{Op: "read", Err: syscall.ECONNRESET}),
			fault.DatabaseUnavailable, "WARN"},
		{context.Background(), context.DeadlineExceeded, fault.DatabaseUnavailable, "WARN"}, // the server's own
		{context.Background(), connect.NewError(connect.CodeUnknown, io.ErrUnexpectedEOF), fault.InternalError,
			"ERROR"},
		{context.Background(), connect.NewError(connect.CodeCanceled, io.ErrClosedPipe), fault.NotRun, "WARN"},
	} {
		out.Reset()
		c := &call{gate: g, procedure: "p"}
		_ = c.finish(x.ctx, x.err)
		if f := faultOf(x.ctx, x.err); f.Reason != x.want || !strings.Contains(out.String(), "level="+x.level) {
			t.Errorf("%v: %s, want %s at %s: %s", x.err, f.Reason.Name, x.want.Name, x.level, out.String())
		}
	}
}

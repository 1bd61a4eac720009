package rpc

import (
	"encoding/base64"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/ledgerd/ledgerd/internal/fault"
)

var unsupported = fault.Register(fault.Reason{Name: "UNSUPPORTED", Class: fault.BadRequest, Code: fault.Unimplemented,
	Step: fault.Fix,
	Doc:  "The server has no such call, or the call does not support the HTTP method, content type or compression."})

// Supported refuses requests to a service that connect-go would refuse without a reason, before the gate runs.
func Supported(path string, next http.Handler) (string, http.Handler) {
	name := protoreflect.FullName(strings.Trim(path, "/"))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		panic(err) // path names no generated service
	}
	methods := map[string]method{} // by name
	for list, i := d.(protoreflect.ServiceDescriptor).Methods(), 0; i < list.Len(); i++ {
		m := list.Get(i)
		o := m.Options().(*descriptorpb.MethodOptions)
		methods[string(m.Name())] = method{stream: m.IsStreamingServer(), readable: !m.IsStreamingServer() &&
			o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS}
	}
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, ok := methods[strings.TrimPrefix(r.URL.Path, path)]
		if !ok {
			NotFound(w, r)
		} else if status, f := protocolFault(w.Header(), r, m); f != nil {
			refuse(w, r, status, f)
		} else {
			next.ServeHTTP(w, r)
		}
	})
}

// method has the properties of a call that decide which protocol requests it supports.
type method struct {
	stream   bool // of responses
	readable bool // by GET
}

// NotFound answers requests for unknown paths.
func NotFound(w http.ResponseWriter, r *http.Request) {
	refuse(w, r, http.StatusNotFound, unsupported.New(
		"there is no such call: send POST /SERVICE/METHOD, such as /ledgerd.ledger.v1.LedgerService/ListAssets"))
}

var errorWriter = connect.NewErrorWriter()

// refuse answers in the protocol of the request. The HTTP status is for plain HTTP clients: gRPC always gets 200.
func refuse(w http.ResponseWriter, r *http.Request, status int, f *fault.Fault) {
	_ = errorWriter.Write(statusWriter{w, status}, r, connectError(f, r.Header.Get(requestIDKey)))
}

// statusWriter replaces the HTTP status that connect-go derives from the code of an error.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w statusWriter) WriteHeader(status int) {
	if status != http.StatusOK {
		status = w.status
	}
	w.ResponseWriter.WriteHeader(status)
}

// protocol describes one protocol: the names of its headers that connect-go reads, and its content types.
type protocol struct {
	encoding, accept     string
	timeout, timeoutRule string
	timeoutForm          *regexp.Regexp
	types                map[string]bool
	contentTypes         string // in messages
}

var (
	connectTimeout = regexp.MustCompile(`^\d{1,10}$`)
	connectUnary   = protocol{"Content-Encoding", "Accept-Encoding", "Connect-Timeout-Ms",
		"must be milliseconds, at most 10 digits", connectTimeout, contentTypes("application/"),
		"application/json or application/proto"}
	connectStream = protocol{"Connect-Content-Encoding", "Connect-Accept-Encoding", "Connect-Timeout-Ms",
		"must be milliseconds, at most 10 digits", connectTimeout, contentTypes("application/connect+"),
		"application/connect+json or application/connect+proto, with each message in an envelope"}
	anyGRPC = protocol{"Grpc-Encoding", "Grpc-Accept-Encoding", "Grpc-Timeout",
		"must be at most 8 digits and a unit, such as 500m", regexp.MustCompile(`^\d{1,8}[HMSmun]$`),
		contentTypes("application/grpc+", "application/grpc-web+"), "application/grpc"}
)

func contentTypes(prefixes ...string) map[string]bool {
	types := map[string]bool{}
	for _, prefix := range prefixes {
		for _, codec := range []string{"proto", "json", "json; charset=utf-8"} {
			types[prefix+codec] = true
		}
		if bare, ok := strings.CutSuffix(prefix, "+"); ok && strings.Contains(bare, "grpc") {
			types[bare] = true
		}
	}
	return types
}

// protocolOf returns the protocol of a request.
func protocolOf(r *http.Request, m method) *protocol {
	switch {
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		return &anyGRPC
	case m.stream:
		return &connectStream
	}
	return &connectUnary
}

// protocolFault returns the fault of a request, if any, and its HTTP status. It sets headers of the response that name
// what is supported.
func protocolFault(header http.Header, r *http.Request, m method) (status int, f *fault.Fault) {
	p, encoding := protocolOf(r, m), ""
	switch {
	case r.Method == http.MethodGet && m.readable:
		q := r.URL.Query()
		if f := queryFault(q); f != nil {
			return http.StatusBadRequest, f
		}
		if r.ContentLength != 0 {
			return http.StatusBadRequest, fault.FieldInvalid.New("a GET must have no body: its message is a parameter")
		}
		p, encoding = &connectUnary, q.Get("compression")
	case r.Method != http.MethodPost:
		allow := "POST"
		if m.readable {
			allow = "GET, POST"
		}
		header.Set("Allow", allow)
		return http.StatusMethodNotAllowed, unsupported.New("the call does not support this HTTP method: send %s",
			allow)
	case !p.supports(r.Header.Get("Content-Type")):
		header.Set("Accept-Post", "application/json, application/proto")
		return http.StatusUnsupportedMediaType, unsupported.New("Content-Type: send %s", p.contentTypes)
	default:
		encoding = r.Header.Get(p.encoding)
	}
	if encoding != "" && encoding != "identity" && encoding != "gzip" {
		header.Set(p.accept, "gzip")
		return http.StatusUnsupportedMediaType, unsupported.New("the compression is unknown: send gzip or identity")
	}
	return http.StatusBadRequest, p.headerFault(r)
}

// supports compares content types as connect-go does.
func (p *protocol) supports(contentType string) bool {
	if p.types[contentType] {
		return true
	}
	base, parameters, err := mime.ParseMediaType(contentType)
	if charset, ok := parameters["charset"]; ok {
		parameters["charset"] = strings.ToLower(charset)
	}
	return err == nil && p.types[mime.FormatMediaType(base, parameters)]
}

// headerFault returns a fault if a header of the protocol is invalid.
func (p *protocol) headerFault(r *http.Request) *fault.Fault {
	const version = "Connect-Protocol-Version"
	name, problem := "", ""
	if v := r.Header.Get(p.timeout); v != "" && !p.timeoutForm.MatchString(v) {
		name, problem = p.timeout, p.timeoutRule
	} else if v := r.Header.Get(version); v != "" && v != "1" && p != &anyGRPC && r.Method == http.MethodPost {
		name, problem = version, "must be 1"
	} else {
		return nil
	}
	return fault.InvalidField(name, "%s", problem)
}

// queryFault returns a fault if a parameter of a GET is invalid.
func queryFault(q url.Values) *fault.Fault {
	name, problem := "", ""
	if v := q.Get("connect"); v != "" && v != "v1" {
		name, problem = "connect", "must be v1"
	} else if !connectUnary.types["application/"+q.Get("encoding")] {
		name, problem = "encoding", "must be json or proto"
	} else if !q.Has("message") {
		name, problem = "message", "is missing: send the request in this parameter"
	} else if q.Get("base64") == "1" && !isBase64(q.Get("message")) {
		name, problem = "message", "must be URL-safe base64, because base64 is 1"
	} else {
		return nil
	}
	return fault.FieldInvalid.New("parameter %s: %s", name, problem).WithField(name, problem)
}

func isBase64(s string) bool {
	encoding := base64.URLEncoding
	if len(s)%4 != 0 {
		encoding = base64.RawURLEncoding
	}
	_, err := encoding.DecodeString(s)
	return err == nil
}

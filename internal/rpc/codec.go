package rpc

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// codecs handle protobuf messages only: Connect passes no others. They encode deterministically, so that a replay has
// the same bytes. Connect's own codecs write maps in random order, and their JSON has white space that differs between
// builds.
func codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithConditionalHandlerOptions(limited),
		connect.WithCompressMinBytes(minCompressed),
	}
}

// limited bounds the messages of a procedure after decompression. A stream of requests has many messages, so Connect
// bounds each; the body of any other request is one message, which newBody bounds.
func limited(spec connect.Spec) []connect.HandlerOption {
	limit := requestLimit(spec.Procedure)
	options := []connect.HandlerOption{connect.WithCompression("gzip",
		func() connect.Decompressor { return &gunzip{limit: limit} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) })}
	if spec.StreamType&connect.StreamTypeClient != 0 {
		options = append(options, connect.WithReadMaxBytes(limit))
	}
	return options
}

const minCompressed = 4 << 10

var (
	marshal   = proto.MarshalOptions{Deterministic: true}
	writeJSON = protojson.MarshalOptions{}
	// Decoding an Any costs a pass over its content at each level. Requests have fewer than 20 levels, not counting the
	// data of templates.
	readJSON = protojson.UnmarshalOptions{RecursionLimit: 64}
)

// decodeErrorField is the greatest field number. No message uses it.
const decodeErrorField = protowire.MaxValidNumber

// storeDecodeError stores a decoding error in the message. Connect decodes before any interceptor runs, and would send
// a codec's error itself, without a reason, a log line, or a count.
func storeDecodeError(m proto.Message, err error) {
	var p jsonProblem
	if !errors.As(err, &p) {
		// Each build of protobuf puts either a space or U+00A0 after "proto:".
		p.problem = strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	}
	proto.Reset(m)
	b := protowire.AppendTag(nil, decodeErrorField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(b, decodeErrorMark+p.path+"\x00"+p.problem))
}

// decodeErrorMark distinguishes the field from one that a caller sends.
var decodeErrorMark = rand.Text()

// decodeError returns the error that storeDecodeError stored, if any.
func decodeError(m proto.Message) error {
	field, kind, n := protowire.ConsumeTag(m.ProtoReflect().GetUnknown())
	if n < 0 || field != decodeErrorField || kind != protowire.BytesType {
		return nil
	}
	text, _ := protowire.ConsumeString(m.ProtoReflect().GetUnknown()[n:])
	text, ours := strings.CutPrefix(text, decodeErrorMark)
	if !ours {
		return nil
	}
	path, problem, _ := strings.Cut(strings.ToValidUTF8(text, "?"), "\x00")
	f := fault.FieldInvalid.New("the request cannot be read: %s", jsonProblem{path, problem}.Error())
	if path != "" {
		f = f.WithField(path, problem)
	}
	return f
}

type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (protoCodec) Marshal(m any) ([]byte, error)       { return marshal.Marshal(m.(proto.Message)) }
func (protoCodec) MarshalStable(m any) ([]byte, error) { return protoCodec{}.Marshal(m) }
func (protoCodec) IsBinary() bool                      { return true }

func (protoCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	return marshal.MarshalAppend(dst, m.(proto.Message))
}

func (protoCodec) Unmarshal(b []byte, m any) error {
	if err := proto.Unmarshal(b, m.(proto.Message)); err != nil {
		storeDecodeError(m.(proto.Message), err)
	}
	return nil
}

type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(m any) ([]byte, error) {
	b, err := writeJSON.Marshal(m.(proto.Message))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(b))
	if err := json.Compact(&out, b); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c jsonCodec) MarshalStable(m any) ([]byte, error) { return c.Marshal(m) }
func (c jsonCodec) IsBinary() bool                      { return false }

func (c jsonCodec) Unmarshal(b []byte, m any) error {
	p := m.(proto.Message)
	if len(b) == 0 {
		storeDecodeError(p, errors.New("the body is empty: send {} for a request without fields"))
	} else if err := readJSON.Unmarshal(b, p); err != nil {
		storeDecodeError(p, explainJSON(b, p, err))
	}
	return nil
}

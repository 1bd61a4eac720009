package rpc

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// codecs make an answer the same bytes whenever it is given: the library's own shuffle maps, and put
// white space into JSON that differs from build to build.
func codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCompression("gzip", func() connect.Decompressor { return &gunzip{} },
			func() connect.Compressor { return gzip.NewWriter(io.Discard) }),
		connect.WithCompressMinBytes(minCompressed),
	}
}

const minCompressed = 4 << 10

var (
	marshal   = proto.MarshalOptions{Deterministic: true}
	writeJSON = protojson.MarshalOptions{}
	// Each level of an Any costs a pass over all that is within. Requests have less than 20 levels, without the data of
	// templates.
	readJSON = protojson.UnmarshalOptions{RecursionLimit: 64}
)

// unreadField is a field that no message has: the last one there can be.
const unreadField = protowire.MaxValidNumber

// leaveUnread leaves in a message what is wrong with its bytes. Connect decodes before any interceptor
// runs, and would answer a codec's error itself, without a reason, a line in the log, or a count.
func leaveUnread(m proto.Message, err error) {
	proto.Reset(m)
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ") // protobuf's errors differ from build to build
	text = strings.TrimPrefix(text, "proto: ")
	b := protowire.AppendTag(nil, unreadField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(b, text))
}

// unread tells what leaveUnread left, if anything. A caller who sends the field himself is answered
// what he wrote.
func unread(m proto.Message) error {
	field, kind, n := protowire.ConsumeTag(m.ProtoReflect().GetUnknown())
	if n < 0 || field != unreadField || kind != protowire.BytesType {
		return nil
	}
	text, _ := protowire.ConsumeString(m.ProtoReflect().GetUnknown()[n:])
	return fault.FieldInvalid.New("the request cannot be read: %s", strings.ToValidUTF8(text, "?"))
}

type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (protoCodec) Marshal(m any) ([]byte, error) {
	p, err := message(m)
	if err != nil {
		return nil, err
	}
	return marshal.Marshal(p)
}

func (protoCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, err := message(m)
	if err != nil {
		return nil, err
	}
	return marshal.MarshalAppend(dst, p)
}

func (protoCodec) MarshalStable(m any) ([]byte, error) { return protoCodec{}.Marshal(m) }
func (protoCodec) IsBinary() bool                      { return true }

func (protoCodec) Unmarshal(b []byte, m any) error {
	p, err := message(m)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(b, p); err != nil {
		leaveUnread(p, err)
	}
	return nil
}

type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(m any) ([]byte, error) {
	p, err := message(m)
	if err != nil {
		return nil, err
	}
	b, err := writeJSON.Marshal(p)
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
	p, err := message(m)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		leaveUnread(p, errors.New("the body is empty: send {} for a request without fields"))
	} else if err := readJSON.Unmarshal(b, p); err != nil {
		leaveUnread(p, err)
	}
	return nil
}

func message(m any) (proto.Message, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", m)
	}
	return p, nil
}

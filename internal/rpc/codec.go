package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Codecs are the handler options that make an answer the same bytes whenever it is given: the
// library's own shuffle maps, and put white space into JSON that differs from build to build.
func Codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	}
}

var (
	marshal   = proto.MarshalOptions{Deterministic: true}
	writeJSON = protojson.MarshalOptions{}
	readJSON  = protojson.UnmarshalOptions{}
)

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
	return proto.Unmarshal(b, p)
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
		return fmt.Errorf("the body is empty: send {} for a request without fields")
	}
	return readJSON.Unmarshal(b, p)
}

func message(m any) (proto.Message, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", m)
	}
	return p, nil
}

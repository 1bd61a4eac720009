package client

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// Headers of request keys.
const (
	KeyHeader      = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed"
)

const maxKeyBytes = 255

var keyText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewKey generates a unique key of 26 characters: 48 bits of time in milliseconds, then 80 random bits. Keys
// that begin with the time are close to each other in the server's index.
func NewKey() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // never returns an error
	return keyText.EncodeToString(b[:])
}

type keyContext struct{}

// WithKey sets the key of the changing calls made with the context: 1 to 255 printable ASCII characters,
// otherwise those calls fail with ReasonKeyInvalid. Use a context for one call and its retries: another request
// under the same key is refused with ReasonKeyReused.
//
// Store the key with the work it belongs to (a queue message, a row). Then the work can also be repeated safely
// after a crash, for as long as the server keeps keys: 24 hours by default.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

type keyLifeContext struct{}

// WithKeyLife sets how long the server keeps the keys of the changing calls made with the context: a minute to
// 31 days, in whole seconds. The default is the tenant's policy, or the server's default of 24 hours.
func WithKeyLife(ctx context.Context, life time.Duration) context.Context {
	return context.WithValue(ctx, keyLifeContext{}, life)
}

// KeyInterceptor sets the key of every changing call: that of WithKey, or a new one. It skips calls that
// already have the header, and methods marked NO_SIDE_EFFECTS or IDEMPOTENT in their proto, which can be
// retried without a key, unless a submit token or a claim precedes them. Put it before RetryInterceptor, so
// that all attempts of a call have the same key. It works for clients of any Connect service that reads
// Idempotency-Key.
func KeyInterceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if !req.Spec().IsClient {
				return next(ctx, req)
			}
			if err := setKey(ctx, req); err != nil {
				return nil, err
			}
			info := infoOf(ctx)
			if info == nil {
				return next(ctx, req)
			}
			*info = Info{Key: bareKey(req.Header().Get(KeyHeader)), Attempts: 1}
			res, err := next(ctx, req)
			info.read(res, err)
			return res, err
		}
	})
}

func setKey(ctx context.Context, req connect.AnyRequest) error {
	h := req.Header()
	if l := level(req.Spec()); len(h[KeyHeader]) > 0 || l == connect.IdempotencyNoSideEffects ||
		l == connect.IdempotencyIdempotent && !guarded(ctx, h) {
		return nil
	}
	key, own := ctx.Value(keyContext{}).(string)
	switch {
	case own && !goodKey(key):
		return badKey()
	case own:
	case keysInside(req.Any()):
		return nil
	default:
		key = NewKey()
	}
	if life, ok := ctx.Value(keyLifeContext{}).(time.Duration); ok {
		h[KeyHeader] = []string{fmt.Sprintf(`"%s";life=%d`, keyEscapes.Replace(key), life/time.Second)}
	} else {
		h[KeyHeader] = []string{quotedKey(key)}
	}
	return nil
}

// guarded reports whether the call has a submit token or a claim. Retried without a key, it would find the
// token or claim used up by its own first attempt.
func guarded(ctx context.Context, h http.Header) bool {
	return len(h[TokenHeader]) > 0 || len(h[ClaimHeader]) > 0 || ctx.Value(tokenContext{}) != nil ||
		ctx.Value(claimContext{}) != nil
}

// changing reports whether a call may change anything. Without a promise in the schema it may.
func changing(s connect.Spec) bool { return level(s) != connect.IdempotencyNoSideEffects }

// level is the call's idempotency level, from the client or the schema.
func level(s connect.Spec) connect.IdempotencyLevel {
	if s.IdempotencyLevel != connect.IdempotencyUnknown {
		return s.IdempotencyLevel
	}
	m, ok := s.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return connect.IdempotencyUnknown
	}
	o, _ := m.Options().(*descriptorpb.MethodOptions)
	return connect.IdempotencyLevel(o.GetIdempotencyLevel()) // same numbers
}

// repeatable reports whether a request may be sent again without repeating its effect.
func repeatable(req connect.AnyRequest) bool {
	return level(req.Spec()) != connect.IdempotencyUnknown || len(req.Header()[KeyHeader]) > 0 || keysInside(req.Any())
}

// keysInside reports whether every part of a request has its own key, so that the whole needs none.
func keysInside(m any) bool {
	batch, ok := m.(*ledgerv1.TransferBatchRequest)
	if !ok || batch.GetAllOrNothing() || len(batch.GetItems()) == 0 {
		return false
	}
	for _, item := range batch.GetItems() {
		if item.GetIdempotencyKey() == "" {
			return false
		}
	}
	return true
}

func goodKey(key string) bool {
	if len(key) < 1 || len(key) > maxKeyBytes {
		return false
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}

var keyEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quotedKey encodes a key for the header: bare, unless an initial quote would be read as quoting, or HTTP would
// strip spaces at its ends.
func quotedKey(key string) string {
	if key[0] != '"' && key[0] != ' ' && key[len(key)-1] != ' ' {
		return key
	}
	return `"` + keyEscapes.Replace(key) + `"`
}

var keyUnescapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// bareKey decodes a key from a header.
func bareKey(header string) string {
	end := strings.LastIndexByte(header, '"')
	if end <= 0 || header[0] != '"' {
		return header
	}
	return keyUnescapes.Replace(header[1:end])
}

// badKey is the server's error for an invalid key. The client returns it itself, because some invalid keys
// cannot be sent.
func badKey() error {
	e := connect.NewError(connect.CodeInvalidArgument,
		errors.New("the Idempotency-Key must be 1 to 255 printable ASCII characters"))
	addDetail(e, &errdetails.ErrorInfo{Reason: string(ReasonKeyInvalid), Domain: domain})
	addDetail(e, &errorsv1.ErrorDetail{Class: errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST,
		NextStep: errorsv1.NextStep_NEXT_STEP_FIX})
	return e
}

// domain is the google.rpc.ErrorInfo domain of ledgerd's errors.
const domain = "ledgerd"

func addDetail(e *connect.Error, m proto.Message) {
	if d, err := connect.NewErrorDetail(m); err == nil {
		e.AddDetail(d)
	}
}

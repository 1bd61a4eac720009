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

// The headers of request keys.
const (
	KeyHeader      = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed"
)

const maxKeyBytes = 255

var keyText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewKey makes a key of 26 characters that nobody else makes: 48 bits of time in milliseconds, then 80
// random ones. Keys that begin with the time stand near each other in the server's index.
func NewKey() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // never fails
	return keyText.EncodeToString(b[:])
}

type keyContext struct{}

// WithKey gives the changing calls made with the context a key of the caller's own: 1 to 255 printable
// ASCII characters, else those calls fail with ReasonKeyInvalid. Use one context for one call and its
// repeats: another request under the same key is refused with ReasonKeyReused.
//
// Keep the key with the work it belongs to (a queue message, a row), and the work is safe to repeat
// after a crash too, for as long as the server keeps keys: 24 hours by default.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

type keyLifeContext struct{}

// WithKeyLife tells the server for how long to keep the keys of the changing calls made with the context: a
// minute to 31 days, in whole seconds. Without it the tenant's policies decide, or the server: 24 hours by
// default.
func WithKeyLife(ctx context.Context, life time.Duration) context.Context {
	return context.WithValue(ctx, keyLifeContext{}, life)
}

// KeyInterceptor gives every changing call a key: that of WithKey, or a new one. It leaves alone calls
// that bring the header, and those whose method is marked NO_SIDE_EFFECTS in its proto, or IDEMPOTENT, unless
// a submit token or a claim stands before them: they can be sent again without a key. Put it before
// RetryInterceptor, so that all attempts of a call have the same key. For clients of any Connect
// service that reads Idempotency-Key.
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

// guarded tells whether a submit token or a claim stands before a call: sent again without a key, it would find
// that it has used it up itself.
func guarded(ctx context.Context, h http.Header) bool {
	return len(h[TokenHeader]) > 0 || len(h[ClaimHeader]) > 0 || ctx.Value(tokenContext{}) != nil ||
		ctx.Value(claimContext{}) != nil
}

// changing tells whether a call changes anything. What the schema does not promise to leave alone is
// taken to change.
func changing(s connect.Spec) bool { return level(s) != connect.IdempotencyNoSideEffects }

// level is what a call promises of being sent again, in its client or in its schema.
func level(s connect.Spec) connect.IdempotencyLevel {
	if s.IdempotencyLevel != connect.IdempotencyUnknown {
		return s.IdempotencyLevel
	}
	m, ok := s.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return connect.IdempotencyUnknown
	}
	o, _ := m.Options().(*descriptorpb.MethodOptions)
	return connect.IdempotencyLevel(o.GetIdempotencyLevel()) // which has the same numbers
}

// repeatable tells whether a request may be sent again without doing its work again.
func repeatable(req connect.AnyRequest) bool {
	return level(req.Spec()) != connect.IdempotencyUnknown || len(req.Header()[KeyHeader]) > 0 || keysInside(req.Any())
}

// keysInside tells whether every part of a request has a key of its own, so that the whole needs none.
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

// quotedKey is a key as it stands in the header: bare, unless a quote in front would be read as the
// beginning of a quoted one, or HTTP would cut off a space at its ends.
func quotedKey(key string) string {
	if key[0] != '"' && key[0] != ' ' && key[len(key)-1] != ' ' {
		return key
	}
	return `"` + keyEscapes.Replace(key) + `"`
}

var keyUnescapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// bareKey is the key in a header.
func bareKey(header string) string {
	end := strings.LastIndexByte(header, '"')
	if end <= 0 || header[0] != '"' {
		return header
	}
	return keyUnescapes.Replace(header[1:end])
}

// badKey is the error that the server gives to a bad key: it has to be given here, since not every bad
// key can be sent.
func badKey() error {
	e := connect.NewError(connect.CodeInvalidArgument,
		errors.New("the Idempotency-Key must be 1 to 255 printable ASCII characters"))
	addDetail(e, &errdetails.ErrorInfo{Reason: string(ReasonKeyInvalid), Domain: domain})
	addDetail(e, &errorsv1.ErrorDetail{Class: errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST,
		NextStep: errorsv1.NextStep_NEXT_STEP_FIX})
	return e
}

// domain is the domain of google.rpc.ErrorInfo in ledgerd's errors.
const domain = "ledgerd"

func addDetail(e *connect.Error, m proto.Message) {
	if d, err := connect.NewErrorDetail(m); err == nil {
		e.AddDetail(d)
	}
}

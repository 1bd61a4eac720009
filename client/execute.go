package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
)

// Operation is one changing call, of any service, in an Execute.
type Operation struct {
	// Name identifies the operation for references from later ones: letters, digits, "_" and "-". May be empty.
	Name string
	// Request is the call's request, such as a *ledgerv1.TransferRequest.
	Request proto.Message
	// From fills fields of the request with results of earlier operations. A key is the path of the field; a
	// value is the name of an operation and a path in its response, such as "hold_id": "keep.hold.id". Amounts,
	// numbers (ids, versions, fences) and template variables can be filled.
	From map[string]string
}

// Execute runs operations in order, all or nothing, in one transaction. The error of a refused operation equals
// that of the single call; "operation" in its Metadata is the operation's index.
func (c *Client) Execute(ctx context.Context, operations ...Operation) (Results, error) {
	r := &batchv1.ExecuteRequest{Operations: make([]*batchv1.Operation, len(operations))}
	for i, o := range operations {
		packed, err := anypb.New(o.Request)
		if err != nil {
			return Results{}, fmt.Errorf("operation %d: %w", i, err)
		}
		to := &batchv1.Operation{Name: o.Name, Request: packed}
		for _, field := range slices.Sorted(maps.Keys(o.From)) {
			name, result, _ := strings.Cut(o.From[field], ".")
			to.References = append(to.References, &batchv1.Reference{Field: field, Operation: name, Result: result})
		}
		r.Operations[i] = to
	}
	res, err := c.Batch.Execute(ctx, r)
	return Results{res.GetResults()}, err
}

// Results are the results of an Execute.
type Results struct{ list []*batchv1.OperationResult }

// Existed reports whether operation i was done before, under its own name.
func (r Results) Existed(i int) bool { return r.list[i].GetExisted() }

// ResponseOf returns the response of operation i, such as a *ledgerv1.TransferResponse.
func ResponseOf[R proto.Message](r Results, i int) (response R, err error) {
	m, err := r.list[i].GetResponse().UnmarshalNew()
	if err != nil {
		return response, fmt.Errorf("operation %d: %w", i, err)
	}
	response, ok := m.(R)
	if !ok {
		return response, fmt.Errorf("operation %d has a response of type %s",
			i, m.ProtoReflect().Descriptor().FullName())
	}
	return response, nil
}

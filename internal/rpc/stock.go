package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// Stock serves StockService.
type Stock struct {
	*Mutations
	Reader *stock.Reader
}

func (s *Stock) PutItem(ctx context.Context, r *pb.PutItemRequest) (*pb.PutItemResponse, error) {
	return run(ctx, s.Mutations, putItemOperation, r)
}

var putItemOperation = register("stock.put_item",
	func(c *call, d *decoder, r *pb.PutItemRequest) mutation[*pb.PutItemResponse] {
		cmd := &stock.PutItemCommand{Caller: c.caller(), Item: d.bizNo("item", r.GetItem()),
			Label:    d.printable("label", r.GetLabel()),
			Segments: int(r.GetSegments()), Strategy: strategyNames[r.GetStrategy()],
			Metadata: d.metadata("metadata", r.GetMetadata())}
		return newMutation(flow.Stock(cmd), 1+max(1, cmd.Segments),
			func(i stock.Item, existed bool) *pb.PutItemResponse {
				return &pb.PutItemResponse{Item: renderItem(&i), Existed: existed}
			})
	})

func (s *Stock) Restock(ctx context.Context, r *pb.RestockRequest) (*pb.RestockResponse, error) {
	return run(ctx, s.Mutations, restockOperation, r)
}

var restockOperation = register("stock.restock",
	func(c *call, d *decoder, r *pb.RestockRequest) mutation[*pb.RestockResponse] {
		cmd := changeOf(c, d, r, stock.Restock)
		return newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Change, existed bool) *pb.RestockResponse {
				return &pb.RestockResponse{Change: renderChange(&x), Existed: existed}
			})
	})

func (s *Stock) AdjustStock(ctx context.Context, r *pb.AdjustStockRequest) (*pb.AdjustStockResponse, error) {
	return run(ctx, s.Mutations, adjustStockOperation, r)
}

var adjustStockOperation = register("stock.adjust_stock",
	func(c *call, d *decoder, r *pb.AdjustStockRequest) mutation[*pb.AdjustStockResponse] {
		if r.GetQuantity() == 0 {
			d.bad("quantity", "must not be 0")
		}
		cmd := changeOf(c, d, r, stock.Adjust)
		cmd.Reason = r.GetReason()
		return newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Change, existed bool) *pb.AdjustStockResponse {
				return &pb.AdjustStockResponse{Change: renderChange(&x), Existed: existed}
			})
	})

func (s *Stock) Unsell(ctx context.Context, r *pb.UnsellRequest) (*pb.UnsellResponse, error) {
	return run(ctx, s.Mutations, unsellOperation, r)
}

var unsellOperation = register("stock.unsell",
	func(c *call, d *decoder, r *pb.UnsellRequest) mutation[*pb.UnsellResponse] {
		cmd := changeOf(c, d, r, stock.Unsell)
		cmd.ReservationNo, cmd.Reason = d.bizNo("reservation_no", r.GetReservationNo()), r.GetReason()
		return newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Change, existed bool) *pb.UnsellResponse {
				return &pb.UnsellResponse{Change: renderChange(&x), Existed: existed}
			})
	})

// stockRows is the usual number of rows that a change or a reservation writes: its own, and that of its item.
const stockRows = 2

// changeOf decodes the fields that all changes have.
func changeOf(c *call, d *decoder, r interface {
	GetItem() string
	GetChangeNo() string
	GetQuantity() int64
}, kind string) *stock.ChangeCommand {
	return &stock.ChangeCommand{Caller: c.caller(), Item: d.bizNo("item", r.GetItem()),
		ChangeNo: d.bizNo("change_no", r.GetChangeNo()), Kind: kind, Quantity: r.GetQuantity()}
}

func (s *Stock) GetItem(ctx context.Context, r *pb.GetItemRequest) (*pb.GetItemResponse, error) {
	i, err := s.Reader.Item(ctx, itemKey(ctx, r))
	if err != nil {
		return nil, err
	}
	return &pb.GetItemResponse{Item: renderItem(&i)}, nil
}

func itemKey(ctx context.Context, r interface{ GetItem() string }) stock.ItemKey {
	return stock.ItemKey{Tenant: callOf(ctx).identity.Tenant, Item: r.GetItem()}
}

func (s *Stock) ListItems(ctx context.Context, r *pb.ListItemsRequest) (*pb.ListItemsResponse, error) {
	items, next, err := s.Reader.Items(ctx, callOf(ctx).identity.Tenant, r.GetPrefix(),
		stock.Page{Size: int(r.GetPageSize()), Token: r.GetPageToken()})
	return &pb.ListItemsResponse{Items: eachOf(items, renderItem), NextPageToken: next}, err
}

func renderItem(i *stock.Item) *pb.Item {
	return &pb.Item{Item: i.Item, Label: i.Label, Available: i.Available, Reserved: i.Reserved, Sold: i.Sold,
		Stocked: i.Stocked, Segments: int32(i.Segments), Strategy: strategies[i.Strategy],
		Metadata: i.Metadata, CreateTime: timestamp(i.CreatedAt),
		UpdateTime: timestamp(i.ChangedAt)}
}

var changeKinds = map[string]pb.ChangeKind{
	stock.Restock: pb.ChangeKind_CHANGE_KIND_RESTOCK, stock.Adjust: pb.ChangeKind_CHANGE_KIND_ADJUST,
	stock.Unsell: pb.ChangeKind_CHANGE_KIND_UNSELL,
}

func renderChange(x *stock.Change) *pb.StockChange {
	return &pb.StockChange{Id: x.ID, Item: x.Item, ChangeNo: x.ChangeNo, Kind: changeKinds[x.Kind],
		Quantity: x.Quantity, Stocked: x.StockedAfter, ReservationNo: x.ReservationNo, Reason: x.Reason,
		CreateTime: timestamp(x.ChangedAt), RequestId: x.RequestID}
}

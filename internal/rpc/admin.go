package rpc

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/paging"
)

// AdministrationOff refuses calls of AdminService on servers without it.
var AdministrationOff = fault.Register(fault.Reason{Name: "ADMINISTRATION_OFF", Class: fault.BadRequest,
	Code: fault.FailedPrecondition, Step: fault.Fix,
	Doc: "The server administers nothing: start it with --admin-database-url, or use the commands of ledgerd."})

// Admin serves AdminService. Administration is nil on servers that do not administer.
type Admin struct{ Administration *access.Administration }

// begin returns the administration by the caller, and the number of the tenant that the request names. Returns faults
// ADMINISTRATION_OFF, TENANT_NOT_FOUND, PERMISSION_DENIED.
func (s *Admin) begin(ctx context.Context, tenant string) (*access.Administration, int32, error) {
	c := callOf(ctx)
	if s.Administration == nil {
		return nil, 0, AdministrationOff.New("this server was started without --admin-database-url")
	}
	if err := c.rejectKeyAndGuards(); err != nil {
		return nil, 0, err
	}
	a := s.Administration.For(c.identity, c.requestID)
	if tenant == "" {
		return a, c.identity.Tenant, nil
	}
	id, err := access.Tenant(ctx, a.Pool(), tenant)
	if c.identity.Role != access.Operator && (id != c.identity.Tenant || fault.Is(err, access.TenantNotFound)) {
		const problem = "is not the caller's own: only an operator administers other tenants"
		return nil, 0, access.PermissionDenied.New("tenant: %s", problem).WithField("tenant", problem)
	}
	return a, id, err
}

func (s *Admin) CreateTenant(ctx context.Context, r *pb.CreateTenantRequest) (*pb.CreateTenantResponse, error) {
	a, _, err := s.begin(ctx, "")
	if err != nil {
		return nil, err
	}
	_, existed, err := a.CreateTenant(ctx, r.GetName())
	return &pb.CreateTenantResponse{Name: r.GetName(), Existed: existed}, err
}

func (s *Admin) ListTenants(ctx context.Context, r *pb.ListTenantsRequest) (*pb.ListTenantsResponse, error) {
	a, _, err := s.begin(ctx, "")
	if err != nil {
		return nil, err
	}
	list, size := paging.Of("admin.tenants", 0), pageSize(r)
	after, err := list.After(r.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	tenants, err := access.ListTenants(ctx, a.Pool(), append(after, "")[0], size+1)
	if err != nil {
		return nil, err
	}
	res := &pb.ListTenantsResponse{}
	if len(tenants) > size {
		tenants = tenants[:size]
		res.NextPageToken = list.Token(tenants[size-1].Name)
	}
	res.Tenants = each(tenants, func(t access.TenantRecord) *pb.Tenant {
		return &pb.Tenant{Name: t.Name, CreateTime: timestamp(t.Created)}
	})
	return res, nil
}

func (s *Admin) CreateKey(ctx context.Context, r *pb.CreateKeyRequest) (*pb.CreateKeyResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	var d decoder
	n := access.NewKey{Principal: r.GetPrincipal(), Rights: access.Rights{Role: access.Role(r.GetRole()),
		Expires: d.time("expire_time", r.GetExpireTime()), CallRate: r.GetCallRate(), CallLimit: r.GetCallLimit()}}
	if err := d.err(); err != nil {
		return nil, err
	}
	if n.Role == access.Operator {
		const problem = "must be ROLE_READ, ROLE_WRITE or ROLE_ADMIN: create keys of operators with ledgerd " +
			"apikey create"
		return nil, access.PermissionDenied.New("role: %s", problem).WithField("role", problem)
	}
	if n.Scopes, err = ParseScopes(n.Role, r.GetScopes()); err != nil {
		return nil, err
	}
	k, err := a.CreateKey(ctx, tenant, n)
	noStore(ctx)
	return &pb.CreateKeyResponse{ApiKey: k.Secret, Key: renderKey(k)}, err
}

// defaultOverlap is how long a rotated key remains valid unless the call says so.
const defaultOverlap = 24 * time.Hour

func (s *Admin) RotateKey(ctx context.Context, r *pb.RotateKeyRequest) (*pb.RotateKeyResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	overlap := defaultOverlap
	if r.Overlap != nil {
		overlap = r.GetOverlap().AsDuration()
	}
	var d decoder
	end := d.time("expire_time", r.GetExpireTime())
	if err := d.err(); err != nil {
		return nil, err
	}
	k, old, err := a.RotateKey(ctx, tenant, r.GetKeyName(), overlap, end)
	noStore(ctx)
	return &pb.RotateKeyResponse{ApiKey: k.Secret, Key: renderKey(k), OldKey: renderKey(old)}, err
}

func (s *Admin) RevokeKey(ctx context.Context, r *pb.RevokeKeyRequest) (*pb.RevokeKeyResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	k, existed, err := a.RevokeKey(ctx, tenant, r.GetKeyName())
	return &pb.RevokeKeyResponse{Key: renderKey(k), Existed: existed}, err
}

func (s *Admin) ListKeys(ctx context.Context, r *pb.ListKeysRequest) (*pb.ListKeysResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	list, size := paging.Of("admin.keys", tenant), pageSize(r)
	place, err := list.After(r.GetPageToken(), 2)
	if err != nil {
		return nil, err
	}
	var after access.KeyPlace
	if place != nil {
		micros, err := strconv.ParseInt(place[0], 10, 64)
		if err != nil || micros < 0 || time.UnixMicro(micros).Year() > 9999 {
			return nil, paging.TokenInvalid.New("page_token: was not issued by this service")
		}
		after = access.KeyPlace{Created: time.UnixMicro(micros), ID: place[1]}
	}
	keys, err := access.ListKeys(ctx, a.Pool(), tenant, after, size+1)
	if err != nil {
		return nil, err
	}
	res := &pb.ListKeysResponse{}
	if len(keys) > size {
		keys = keys[:size]
		last := keys[size-1].Place()
		res.NextPageToken = list.Token(strconv.FormatInt(last.Created.UnixMicro(), 10), last.ID)
	}
	res.Keys = each(keys, renderKey)
	return res, nil
}

func renderKey(k access.Key) *pb.Key {
	return &pb.Key{KeyName: k.ID, Principal: k.Principal, Role: pb.Role(k.Role), Scopes: k.Scopes.Texts(),
		ExpireTime: timestamp(k.Expires), CallRate: k.CallRate, CallLimit: k.CallLimit,
		CreateTime: timestamp(k.Created), CreatedBy: k.CreatedBy, RevokeTime: timestamp(k.Revoked),
		RevokedBy: k.RevokedBy, LastUseTime: timestamp(k.Used)}
}

func (s *Admin) PutPolicy(ctx context.Context, r *pb.PutPolicyRequest) (*pb.PutPolicyResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	x := r.GetPolicy()
	p := access.Policy{Operation: x.GetOperation(), KeyRequired: x.GetKeyRequired(),
		TokenRequired: x.GetTokenRequired(), KeyLife: x.GetKeyLife().AsDuration(),
		ApprovalRequired: x.GetApprovalRequired()}
	var d decoder
	if x.GetApprovalAbove() != "" {
		p.ApprovalAbove = d.optionalDecimal("approval_above", &x.ApprovalAbove)
	}
	if err = cmp.Or(d.err(), CheckPolicy(p)); err == nil {
		err = a.PutPolicy(ctx, tenant, p)
	}
	return &pb.PutPolicyResponse{}, fault.In("policy.", err)
}

func (s *Admin) ListPolicies(ctx context.Context, r *pb.ListPoliciesRequest) (*pb.ListPoliciesResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	all, err := access.ListPolicies(ctx, a.Pool(), tenant)
	if err != nil {
		return nil, err
	}
	list, next, err := onePage(all, "admin.policies", tenant, r)
	return &pb.ListPoliciesResponse{NextPageToken: next, Policies: each(list, func(p access.Policy) *pb.Policy {
		x := &pb.Policy{Operation: p.Operation, KeyRequired: p.KeyRequired, TokenRequired: p.TokenRequired,
			ApprovalRequired: p.ApprovalRequired}
		if p.KeyLife > 0 {
			x.KeyLife = durationpb.New(p.KeyLife)
		}
		if p.ApprovalAbove != nil {
			x.ApprovalAbove = p.ApprovalAbove.String()
		}
		return x
	})}, err
}

func (s *Admin) DeletePolicy(ctx context.Context, r *pb.DeletePolicyRequest) (*pb.DeletePolicyResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	return &pb.DeletePolicyResponse{}, a.DeletePolicy(ctx, tenant, r.GetOperation())
}

type pageRequest interface {
	GetPageSize() int32
	GetPageToken() string
}

func pageSize(r pageRequest) int {
	if r.GetPageSize() == 0 {
		return 100
	}
	return int(r.GetPageSize())
}

// onePage returns a page of a short list that was read whole. Its token is the number of rows before the next page.
func onePage[T any](all []T, name string, tenant int32, r pageRequest) (page []T, next string, err error) {
	list := paging.Of(name, tenant)
	from, err := list.AfterNumber(r.GetPageToken(), 0)
	if err == nil && from < 0 {
		err = paging.TokenInvalid.New("page_token: was not issued by this service")
	}
	if err != nil {
		return nil, "", err
	}
	page = all[min(int(from), len(all)):]
	if size := pageSize(r); len(page) > size {
		page, next = page[:size], list.TokenNumber(from+int64(size))
	}
	return page, next, nil
}

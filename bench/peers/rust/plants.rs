// Implements the plants API with Rust's hyper and tokio-postgres. Each of four connections prepares the
// statements once and pipelines them. The program caches tokens for three seconds.
use futures_util::future::try_join_all;
use hyper::service::{make_service_fn, service_fn};
use hyper::{body, header, Body, Method, Request, Response, Server};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls, Statement};

const CONNECTIONS: usize = 4;
const LARGEST_BODY: u64 = 1 << 20;
const TOKEN_CACHE_TTL: Duration = Duration::from_secs(3);

#[derive(Serialize)]
struct Plant {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

#[derive(Deserialize)]
struct NewPlant {
    id: i64,
    name: String,
    tag: Option<String>,
}

#[derive(Serialize)]
struct Rejection {
    error: u16,
    message: &'static str,
}

type Outcome = Result<Response<Body>, Rejection>;

fn reject<T>(status: u16, message: &'static str) -> Result<T, Rejection> {
    Err(Rejection { error: status * 100, message })
}

impl From<tokio_postgres::Error> for Rejection {
    fn from(error: tokio_postgres::Error) -> Self {
        eprintln!("{error}");
        Rejection { error: 50000, message: "internal error" }
    }
}

struct Connection {
    client: Client,
    find: Statement,
    list: Statement,
    create: Statement,
    delete: Statement,
}

struct App {
    connections: Vec<Connection>,
    next: AtomicUsize,
    tokens: RwLock<HashMap<[u8; 32], (String, Instant)>>,
}

async fn connect(url: &str) -> Result<Connection, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let find = "select username from tokens where hash = $1 and revoked_at is null
        and (expires_at is null or expires_at > now())";
    let list = "select name, tag from plants where owner = $1 order by id limit $2";
    let create = "insert into plants (owner, id, name, tag) values ($1, $2, $3, $4) on conflict do nothing";
    let delete = "delete from plants where owner = $1 and id = $2";
    Ok(Connection {
        find: client.prepare(find).await?,
        list: client.prepare(list).await?,
        create: client.prepare(create).await?,
        delete: client.prepare(delete).await?,
        client,
    })
}

fn respond(status: u16, body: &impl Serialize) -> Response<Body> {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(body).expect("it is only text").into())
        .expect("status and header are fixed")
}

impl App {
    fn connection(&self) -> &Connection {
        &self.connections[self.next.fetch_add(1, Relaxed) % self.connections.len()]
    }

    async fn authenticate(&self, request: &Request<Body>) -> Result<String, Rejection> {
        let header = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let token = header.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some((owner, until)) = self.tokens.read().unwrap().get(&hash) {
            if Instant::now() < *until {
                return Ok(owner.clone());
            }
        }
        let Connection { client, find, .. } = self.connection();
        let Some(row) = client.query_opt(find, &[&hash.as_slice()]).await? else {
            return reject(401, "unknown token");
        };
        let owner: String = row.get(0);
        self.tokens.write().unwrap().insert(hash, (owner.clone(), Instant::now() + TOKEN_CACHE_TTL));
        Ok(owner)
    }

    async fn list(&self, owner: &str, query: &str) -> Outcome {
        let text = query.split('&').find_map(|pair| pair.strip_prefix("limit="));
        let limit = match text.map(|text| text.parse::<u32>().map(i64::from)).transpose() {
            Ok(limit) => limit,
            Err(_) => return reject(400, "limit must be an integer"),
        };
        let Connection { client, list, .. } = self.connection();
        let rows = client.query(list, &[&owner, &limit]).await?;
        let plants: Vec<Plant> =
            rows.iter().map(|row| Plant { name: row.get(0), tag: row.get(1) }).collect();
        Ok(respond(200, &plants))
    }

    async fn create(&self, owner: &str, body: Body) -> Outcome {
        let bytes = match body::HttpBody::size_hint(&body).upper() {
            Some(size) if size <= LARGEST_BODY => body::to_bytes(body).await.unwrap_or_default(),
            _ => return reject(413, "a body has a length of 1 MiB at most"),
        };
        let Ok(NewPlant { id, name, tag }) = serde_json::from_slice(&bytes) else {
            return reject(400, "a plant has an id, a name and perhaps a tag");
        };
        let Connection { client, create, .. } = self.connection();
        if client.execute(create, &[&owner, &id, &name, &tag]).await? == 0 {
            return reject(400, "this id is taken");
        }
        Ok(respond(200, &Plant { name, tag }))
    }

    async fn delete(&self, owner: &str, id: &str) -> Outcome {
        let Ok(id) = id.parse::<i64>() else {
            return reject(400, "id must be an integer");
        };
        let Connection { client, delete, .. } = self.connection();
        if client.execute(delete, &[&owner, &id]).await? == 0 {
            return reject(404, "no such plant");
        }
        Ok(Response::builder().status(204).body(Body::empty()).expect("the status is fixed"))
    }

    async fn operate(&self, request: Request<Body>) -> Outcome {
        let path = request.uri().path();
        if path == "/livez" {
            return Ok(Response::default());
        }
        let id = path.strip_prefix("/plants/");
        if path != "/plants" && id.is_none() {
            return reject(404, "nothing here");
        }
        let owner = self.authenticate(&request).await?;
        match (request.method(), id) {
            (&Method::GET, None) => self.list(&owner, request.uri().query().unwrap_or("")).await,
            (&Method::POST, None) => self.create(&owner, request.into_body()).await,
            (&Method::DELETE, Some(id)) => self.delete(&owner, id).await,
            _ => reject(405, "not allowed here"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("DATABASE_URL")?;
    let app = Arc::new(App {
        connections: try_join_all((0..CONNECTIONS).map(|_| connect(&url))).await?,
        next: AtomicUsize::new(0),
        tokens: RwLock::default(),
    });
    let make = make_service_fn(|_| {
        let app = app.clone();
        async move {
            Ok::<_, Infallible>(service_fn(move |request| {
                let app = app.clone();
                async move {
                    let outcome = app.operate(request).await;
                    let rejected = |rejection: Rejection| respond(rejection.error / 100, &rejection);
                    Ok::<_, Infallible>(outcome.unwrap_or_else(rejected))
                }
            }))
        }
    });
    let address = ([127, 0, 0, 1], env::var("PORT")?.parse()?).into();
    Server::bind(&address).tcp_nodelay(true).serve(make).await?;
    Ok(())
}

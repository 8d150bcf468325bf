"""sentence-transformers behind FastAPI, as one writes it: the rival of bench/serving.py.

usage: st_server.py MODEL PORT THREADS"""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
torch.set_num_threads(int(sys.argv[3]))
app = FastAPI()


class Request(BaseModel):
    inputs: str | list[str]


@app.get("/health")
def health():
    return {"status": "ok"}


@app.post("/embed")
def embed(request: Request):
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    return model.encode(texts, normalize_embeddings=True).tolist()


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")

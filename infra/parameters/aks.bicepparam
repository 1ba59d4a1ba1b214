// Worker and consumer run on an AKS cluster. The API runs on Container Apps, where azd has deployed it.
using '../main.bicep'

param environmentName = 'aks'
param location = 'westeurope'
param workerPlatform = 'aks'
param aksOidcIssuerUrl = 'https://issuer.example'
param apiExists = true
param workerExists = true
param consumerExists = true
